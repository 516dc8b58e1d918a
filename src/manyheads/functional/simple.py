"""What an approximation is handed: tensors in full precision, causality, and who is absent."""

from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.errors import MaskError
from manyheads.functional.call import prepare
from manyheads.masks import Bound, Causal, Mask, Padding
from manyheads.masks.algebra import And


class Simple(NamedTuple):
    """One call without a word about single pairs.

    Args:
        q: (batch, num_heads, q_len, head_dim), fp32 at least.
        k: (batch, num_kv_heads, kv_len, head_dim), likewise; absent tokens are 0.
        v: (batch, num_kv_heads, kv_len, value_dim), as k.
        causal: Whether the queries, as the last q_len of the keys, see nothing later than
            themselves.
        absent: bool (batch or 1, kv_len), True where there is no key; None if all are there.
        scale: Multiplies q.k.
        dtype: Of the output.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    absent: Tensor | None
    scale: float
    dtype: torch.dtype

    @property
    def absent_rows(self) -> Tensor | None:
        """`absent`, to be laid over k or v: (batch or 1, 1, kv_len, 1)."""
        return None if self.absent is None else self.absent[:, None, :, None]


def simplify_call(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    *,
    scale: float | None = None,
    never_causal: str | None = None,
) -> Simple:
    """Check what an approximation was given, and refuse the masks that it cannot take.

    Args:
        name: Of the approximation.
        q: See `attention`.
        k: See `attention`.
        v: See `attention`.
        mask: None, ``Causal()``, ``Padding(...)``, or several joined by ``&``.
        scale: See `attention`.
        never_causal: Why it cannot hide the future; None if it can.
    """
    causal = _reads_causality(name, mask, never_causal)
    call = prepare(
        q, k, v, mask, bias=None, scale=scale, softcap=None, sink_logits=None, dropout=0.0,
        q_pos=None, kv_pos=None, need="output",
    )  # fmt: skip
    absent = None if call.mask is None else call.mask.kv.absent
    full = torch.promote_types(call.q.dtype, torch.float32)
    q, k, v = (x.to(full) for x in (call.q, call.k, call.v))
    return Simple(q, k, v, causal, absent, call.scale, call.q.dtype)


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values, copied for every query head that reads them."""
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def _reads_causality(name: str, mask: Mask | Bound | Tensor | None, never: str | None) -> bool:
    if mask is None:
        return False
    takes = (
        "Causal(), Padding(...) or both joined by &" if never is None else "None or Padding(...)"
    )
    if not isinstance(mask, Mask):
        raise MaskError(
            f"mask must be {takes} for {name}; got mask={type(mask).__name__}. It never looks at "
            f"single pairs; attention(...) does, and takes any mask."
        )
    kinds = {type(part) for part in mask.parts()} - {And}
    if not kinds <= {Causal, Padding}:
        raise MaskError(
            f"mask must be {takes} for {name}; got mask={mask!r}. It never looks at single pairs; "
            f"attention(...) does, and takes any mask."
        )
    if Causal in kinds and never is not None:
        raise MaskError(
            f"mask must be {takes} for {name}; got mask={mask!r}. {never}; linear_attention, "
            f"performer_attention and lsh_attention can hide the future."
        )
    return Causal in kinds
