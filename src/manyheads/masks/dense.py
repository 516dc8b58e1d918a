"""A mask that is written out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import DTypeError, MaskError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Facts, Side
from manyheads.shapes import check_tensor


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """Each query sees the keys for which a tensor holds True.

    The one mask that goes by index and not by position: with a cache it must span all keys.

    Args:
        tensor: bool (q_len, kv_len) or (batch or 1, heads or 1, q_len or 1, kv_len).

    Raises:
        DTypeError: If the tensor is not bool: 0 and 1 mean opposite things in different libraries.
        MaskError: If it has another number of dimensions: (batch, q_len, kv_len) would land on the
            heads' axis wherever batch equals heads.

    Example:
        >>> import torch, manyheads as mh
        >>> print(mh.Dense(torch.eye(3, dtype=torch.bool)).draw(3))
        █··
        ·█·
        ··█
    """

    tensor: Tensor

    reads_positions = False

    def __post_init__(self) -> None:
        if check_tensor("mask", self.tensor).dtype != torch.bool:
            raise DTypeError(
                f"a mask tensor must be bool, True = may see; got mask={self.tensor.dtype}. "
                f"Integers and floats: from_attention_mask (1 = may see), from_key_padding_mask or "
                f"from_attn_mask (True = hidden); numbers that are added to scores are a bias=."
            )
        if self.tensor.ndim not in (2, 4):
            raise MaskError(
                f"a mask tensor must be (q_len, kv_len) or (batch, heads or 1, q_len, kv_len); got "
                f"shape {tuple(self.tensor.shape)}. For one mask a sequence write mask[:, None]; "
                f"for padding (batch, kv_len) write Padding(keep)."
            )

    def settle(self, facts: Facts) -> Mask:
        tensor = self.tensor if self.tensor.ndim == 4 else self.tensor[None, None]
        return Indexed(facts.whole("pair", self, tensor))

    def __repr__(self) -> str:
        return f"Dense({' x '.join(map(str, self.tensor.shape))})"


@dataclass(frozen=True, eq=False)
class Indexed(Mask):
    """The rule of `Dense`: a fact of each pair says who sees whom."""

    fact: str
    reads_positions = False

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        seen = kv[self.fact]
        if head.ndim:
            check_heads(seen, head.shape[0])
        return seen


def check_heads(pairs: Tensor, num_heads: int) -> None:
    """Refuse a fact of pairs, (batch, heads or 1, q_len, kv_len), of another number of heads."""
    if pairs.shape[1] not in (1, num_heads):
        raise MaskError(
            f"a mask tensor's heads must be 1 or num_heads={num_heads}; got shape "
            f"{tuple(pairs.shape)}. Its dimensions are (batch, heads or 1, q_len, kv_len)."
        )


def as_mask(value: Mask | Tensor) -> Mask:
    """Return a mask as it is, and a bool tensor as `Dense`; refuse everything else by name."""
    if isinstance(value, Mask):
        return value
    if isinstance(value, Tensor):
        return Dense(value)
    raise DTypeError(
        f"mask must be a Mask or a bool tensor; got mask={type(value).__name__}. "
        f"Write Causal(), Padding(lengths=...), or a bool tensor in which True means may see."
    )
