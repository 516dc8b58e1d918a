"""Turn pairs of features by given angles: the arithmetic of rotary, and its fast paths."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import DTypeError, OptionError, ShapeError
from manyheads.positions.given import check_device, is_plain_call

Pairs = Literal["halves", "interleaved"]
PAIRS: tuple[Pairs, ...] = ("halves", "interleaved")

Layout = tuple[Tensor, ...]
"""Cosines and sines as the fast paths read them; see ``lay_out``."""

_LARGE = 2**20
"""Bytes from which a pass over memory costs more than the call of an autograd.Function."""


def rotate(
    x: Float[Tensor, "batch heads length head_dim"],
    cos: Float[Tensor, "*batch length pairs"],
    sin: Float[Tensor, "*batch length pairs"],
    *,
    pairs: Pairs = "halves",
) -> Float[Tensor, "batch heads length head_dim"]:
    """Turn each pair (a, b) of features into ``(a cos - b sin, b cos + a sin)``.

    With n = ``cos.shape[-1]`` pairs, the first 2n features are turned and the others left alone.
    ``"halves"`` pairs feature i with i + n, ``"interleaved"`` pairs 2i with 2i + 1.

    How others differ: GPT-NeoX, Llama in Hugging Face and ONNX pair halves; Su et al., GPT-J,
    Meta's Llama and torchtune interleave. Both are right with weights made for them, and wrong in
    silence with the others'. nanochat turns by minus the angle.

    Args:
        x: Queries or keys, split into heads.
        cos: Cosines of the angles, (length, n) or (batch, length, n), for all heads alike.
        sin: Sines of the angles, of the same shape.
        pairs: Which features make a pair.

    Returns:
        The turned features, in the dtype of ``x``. Gradients flow to ``x``, ``cos`` and ``sin``.

    Raises:
        ShapeError: If ``x`` is not of rank 4 or the tables do not fit it.
        DTypeError: If one of the three is not of floats.
        DeviceError: If they live on different devices.
        OptionError: If ``pairs`` is neither.

    Source:
        Su et al. 2021, equation 34 (arXiv:2104.09864).

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
        >>> quarter_turn = torch.zeros(1, 2), torch.ones(1, 2)
        >>> rotate(x, *quarter_turn, pairs="interleaved").flatten()
        tensor([-2.,  1., -4.,  3.])
        >>> rotate(x, *quarter_turn, pairs="halves").flatten()
        tensor([-3., -4.,  1.,  2.])
    """
    check_pairs(pairs)
    check_heads(x)
    check_tables(x, cos, sin)
    if is_plain_call(x) and not (cos.requires_grad or sin.requires_grad):
        return rotate_by_layout(x, lay_out(cos, sin, pairs=pairs, dtype=x.dtype))
    return rotate_by_formula(x, cos, sin, pairs=pairs)


def rotate_by_formula(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: Pairs) -> Tensor:
    """The readable form, for whoever traces or maps: a compiler fuses it into one kernel."""
    if cos.ndim == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    # float32 at least, so that bf16 is rounded once, at the end.
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    dtype = torch.promote_types(turned.dtype, torch.float32)
    turned, cos, sin = turned.to(dtype), cos.to(dtype), sin.to(dtype)
    if pairs == "halves":
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((turned.to(x.dtype), rest), dim=-1) if rest.shape[-1] else turned.to(x.dtype)


def lay_out(cos: Tensor, sin: Tensor, *, pairs: Pairs, dtype: torch.dtype) -> Layout:
    """Lay tables out for features of ``dtype``.

    Halves read cosines and signed sines as wide as the features, in their dtype; interleaved pairs
    read complex numbers, in float32 for anything shorter.
    """
    if cos.ndim == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if pairs == "halves":
        cos, sin = cos.to(dtype), sin.to(dtype)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    dtype = torch.promote_types(dtype, torch.float32)
    return (torch.complex(cos.to(dtype), sin.to(dtype)),)


def rotate_by_layout(x: Tensor, layout: Layout) -> Tensor:
    """The form for eager code, on the path that was measured the fastest."""
    width = layout[0].shape[-1] * (1 if len(layout) == 2 else 2)
    if width < x.shape[-1]:
        return torch.cat((rotate_by_layout(x[..., :width], layout), x[..., width:]), dim=-1)
    if x.nbytes < _LARGE:
        return _in_few_calls(x, *layout)
    if x.requires_grad and torch.is_grad_enabled():
        return _Rotation.apply(x, *layout)
    return _in_few_passes(x, *layout)


def _in_few_calls(x: Tensor, cos: Tensor, sin: Tensor | None = None) -> Tensor:
    """Few kernels, each of which autograd can follow."""
    if sin is None:
        return _by_complex(x, cos)
    a, b = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((b, a), dim=-1), sin)


def _in_few_passes(x: Tensor, cos: Tensor, sin: Tensor | None = None) -> Tensor:
    """Few passes over memory, and no second tensor of the size of ``x``."""
    if sin is None:
        return _by_complex(x, cos)
    half = x.shape[-1] // 2
    out = x.view(*x.shape[:-1], 2, half) * cos.view(*cos.shape[:-1], 2, half)
    out.select(-2, 0).addcmul_(x[..., half:], sin[..., :half])
    out.select(-2, 1).addcmul_(x[..., :half], sin[..., half:])
    return out.reshape(x.shape)


def _by_complex(x: Tensor, turns: Tensor) -> Tensor:
    """Neighbours are a complex number, and a rotation is a product: one pass."""
    wide = x.float() if x.element_size() < 4 else x
    in_pairs = (*x.shape[:-1], x.shape[-1] // 2, 2)
    try:
        numbers = torch.view_as_complex(wide.view(in_pairs))
    except RuntimeError:  # A view whose pairs are not adjacent, or start at an odd place.
        wide = wide.clone(memory_format=torch.contiguous_format)
        numbers = torch.view_as_complex(wide.view(in_pairs))
    turned = torch.view_as_real(numbers * turns).reshape(x.shape)
    return turned if wide is x else turned.to(x.dtype)


class _Rotation(torch.autograd.Function):
    """A rotation, whose gradient is the rotation back: nothing of ``x`` is kept for it."""

    @staticmethod
    def forward(x: Tensor, *tables: Tensor) -> Tensor:
        return _in_few_passes(x, *tables)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tables = ctx.saved_tensors
        back = (tables[0], -tables[1]) if len(tables) == 2 else (tables[0].conj(),)
        # Whoever maps over backward needs calls that map; vmap has no rule for those in place.
        turn_back = _Rotation.apply if is_plain_call(grad) else _in_few_calls
        return turn_back(grad, *back), *(None for _ in tables)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return _in_few_passes(tangent, *ctx.saved_tensors)


def check_pairs(pairs: str) -> None:
    """Refuse a pair style that does not exist."""
    if pairs not in PAIRS:
        raise OptionError(
            f"pairs must be 'halves' or 'interleaved'; got pairs={pairs!r}. "
            f"Take the one that the weights were trained with; docs name it for known models."
        )


def check_heads(x: Tensor) -> None:
    """Refuse what is not a stack of heads of floats."""
    if x.ndim != 4:
        raise ShapeError(
            f"x must be (batch, heads, length, head_dim); got shape={tuple(x.shape)}. "
            f"Split the heads first: x.unflatten(-1, (num_heads, -1)).transpose(1, 2)."
        )
    if not x.is_floating_point():
        raise DTypeError(f"x must be of floats; got x={x.dtype}. Convert it with x.float().")


def check_tables(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Refuse tables that do not fit the heads."""
    batch, _, length, head_dim = x.shape
    if cos.shape != sin.shape:
        raise ShapeError(
            f"cos and sin must have one shape; got cos={tuple(cos.shape)}, "
            f"sin={tuple(sin.shape)}. Give one of each for every pair of features."
        )
    if cos.shape[:-1] not in ((length,), (batch, length), (1, length)):
        raise ShapeError(
            f"cos and sin must be (length, pairs) or (batch, length, pairs), with batch={batch} "
            f"and length={length}; got shape={tuple(cos.shape)}. Pick the rows of the tokens "
            f"first, with cos[positions]."
        )
    if not 2 <= 2 * cos.shape[-1] <= head_dim:
        raise ShapeError(
            f"cos and sin must have 1 to {head_dim // 2} pairs for head_dim={head_dim}; got "
            f"pairs={cos.shape[-1]}. Give one column a pair, not one a feature."
        )
    for name, table in (("cos", cos), ("sin", sin)):
        if not table.is_floating_point():
            raise DTypeError(
                f"{name} must be of floats; got {name}={table.dtype}. Make it in torch.float32."
            )
        check_device(name, table, x.device)
