"""Masks as other libraries write them, turned into ours."""

import torch
from torch import Tensor

from manyheads.errors import DTypeError, MaskError, ShapeError
from manyheads.masks.base import Mask
from manyheads.masks.dense import Dense
from manyheads.masks.padding import Padding
from manyheads.shapes import check_tensor, values_are_cheap


def from_key_padding_mask(key_padding_mask: Tensor) -> Mask:
    """A `Padding` from torch's ``key_padding_mask``: True, 1 or -inf = padding.

    Args:
        key_padding_mask: (batch, kv_len), bool or 0/1 integers (1 = padding), or floats that
            torch would add to the scores (0 = real, -inf = padding).

    Raises:
        DTypeError: If floats are not all 0 or -inf: 0/1 floats have no one meaning.
        ShapeError: If it is not of two dimensions.

    Example:
        >>> import torch, manyheads as mh
        >>> mh.from_key_padding_mask(torch.tensor([[False, False, True]])).keep
        tensor([[ True,  True, False]])
    """
    mask = check_tensor("key_padding_mask", key_padding_mask)
    _check_ndim("key_padding_mask", mask, (2,), "(batch, kv_len)")
    return Padding(~_hidden("key_padding_mask", mask))


def from_attn_mask(attn_mask: Tensor, *, num_heads: int | None = None) -> Mask:
    """A `Dense` from the ``attn_mask`` of ``nn.MultiheadAttention``: True, 1 or -inf = hidden.

    The ``attn_mask`` of ``scaled_dot_product_attention`` means the opposite: see `from_sdpa_mask`.

    Args:
        attn_mask: (q_len, kv_len), (batch * num_heads, q_len, kv_len) with sample b's head h at
            b * num_heads + h, or (batch, num_heads or 1, q_len, kv_len).
        num_heads: Needed for three dimensions.

    Raises:
        DTypeError: If floats are not all 0 or -inf; such numbers are a ``bias=``.
        ShapeError: If the shape is ambiguous.

    Example:
        >>> import torch, manyheads as mh
        >>> hidden = torch.ones(3, 3).triu(1).bool()
        >>> print(mh.from_attn_mask(hidden).draw(3))
        █··
        ██·
        ███
    """
    mask = check_tensor("attn_mask", attn_mask)
    _check_ndim("attn_mask", mask, (2, 3, 4), "(q_len, kv_len) or (batch * num_heads, ...)")
    if mask.ndim == 3:
        if num_heads is None or mask.shape[0] % num_heads:
            raise ShapeError(
                f"attn_mask of three dimensions must be (batch * num_heads, q_len, kv_len) and "
                f"num_heads given; got shape {tuple(mask.shape)}, num_heads={num_heads}. For one "
                f"mask a sequence write attn_mask[:, None]."
            )
        mask = mask.unflatten(0, (-1, num_heads))
    return Dense(~_hidden("attn_mask", mask))


def from_sdpa_mask(attn_mask: Tensor) -> Mask:
    """A `Dense` from the bool ``attn_mask`` of ``scaled_dot_product_attention``: True = may see.

    Args:
        attn_mask: bool, (q_len, kv_len) or (batch or 1, heads or 1, q_len, kv_len).

    Raises:
        DTypeError: If it is not bool; floats are added to the scores there, so they are a
            ``bias=`` here.

    Example:
        >>> import torch, manyheads as mh
        >>> print(mh.from_sdpa_mask(torch.ones(2, 3, dtype=torch.bool).tril(1)).draw(2, 3))
        ██·
        ███
    """
    return Dense(attn_mask)


def from_attention_mask(attention_mask: Tensor) -> Mask:
    """A mask from Hugging Face's ``attention_mask``: True or 1 = may see.

    Args:
        attention_mask: (batch, kv_len), (batch, q_len, kv_len), or (batch, heads or 1, q_len,
            kv_len), bool or 0/1 integers (1 = may see); of four dimensions also floats to be
            added (0 = may see, -inf or the dtype's lowest number = hidden).

    Returns:
        `Padding` for two dimensions, else `Dense`.

    Raises:
        DTypeError: If floats are 0/1, or anything else than 0 and the lowest.
        ShapeError: If it is not of two, three or four dimensions.

    Example:
        >>> import torch, manyheads as mh
        >>> mh.from_attention_mask(torch.tensor([[1, 1, 0]])).keep
        tensor([[ True,  True, False]])
    """
    mask = check_tensor("attention_mask", attention_mask)
    _check_ndim("attention_mask", mask, (2, 3, 4), "(batch, kv_len) up to (batch, heads, q, kv)")
    if mask.dtype.is_floating_point:
        if mask.ndim != 4:
            raise DTypeError(
                f"attention_mask of {mask.ndim} dimensions must be bool or integers; got "
                f"attention_mask={mask.dtype}. If 1 means may see, convert it with .bool()."
            )
        return Dense(~_hidden("attention_mask", mask))
    seen = _as_bool("attention_mask", mask)
    if seen.ndim == 2:
        return Padding(seen)
    return Dense(seen[:, None] if seen.ndim == 3 else seen)


def from_zero_one_mask(mask: Tensor, *, q_len: int, kv_len: int) -> Mask:
    """A mask of ours from a tutorial's: 1 or True = may see, 0 or False = hidden.

    Args:
        mask: Bool, integers or floats; (q_len, kv_len), (batch, q_len, kv_len) or (batch, heads or
            1, q_len, kv_len). The axis of the queries may be 1 where all of them see the same keys.
        q_len: How many queries there are.
        kv_len: How many keys there are.

    Returns:
        `Padding` if all queries and heads see the same keys, else `Dense`.

    Raises:
        ShapeError: If its dimensions are others; the message says how to add one.
        MaskError: If it holds other numbers than 0 and 1.

    Example:
        >>> import torch
        >>> print(from_zero_one_mask(torch.tril(torch.ones(3, 3)), q_len=3, kv_len=3).draw(3))
        █··
        ██·
        ███
        >>> from_zero_one_mask(torch.tensor([[[1, 1, 0]]]), q_len=3, kv_len=3)
        Padding(keep of (1, 3))
    """
    check_tensor("mask", mask)
    if mask.ndim not in (2, 3, 4) or mask.shape[-1] != kv_len or mask.shape[-2] not in (1, q_len):
        raise ShapeError(
            f"mask must be (q_len, kv_len) = ({q_len}, {kv_len}), (batch, q_len, kv_len) or "
            f"(batch, heads or 1, q_len, kv_len); got shape {tuple(mask.shape)}. For padding "
            f"(batch, kv_len) write mask[:, None]."
        )
    if mask.is_complex():
        raise DTypeError(
            f"mask must be bool, integers or floats; got mask={mask.dtype}. Give 1 for may see and "
            f"0 for hidden."
        )
    if values_are_cheap(mask) and not bool(((mask == 0) | (mask == 1)).all()):
        raise MaskError(
            f"mask must hold only 0 (hidden) and 1 (may see); got values from {mask.min().item()} "
            f"to {mask.max().item()}. Numbers that are added to scores go to mh.attention as bias=."
        )
    # (q_len, kv_len) -> (1, 1, q_len, kv_len); (batch, q_len, kv_len) -> (batch, 1, q_len, kv_len)
    seen = (mask[None, None] if mask.ndim == 2 else mask[:, None] if mask.ndim == 3 else mask) != 0
    if seen.shape[1] == 1 and seen.shape[2] == 1:
        return Padding(seen[:, 0, 0])
    return Dense(seen.expand(-1, -1, q_len, -1))


def _hidden(name: str, mask: Tensor) -> Tensor:
    if not mask.dtype.is_floating_point:
        return _as_bool(name, mask)
    # finfo.min + finfo.min is -inf, so masks that were added up hold either.
    lowest = mask <= torch.finfo(mask.dtype).min
    if not bool(((mask == 0) | lowest).all()):
        raise DTypeError(
            f"{name} of floats must hold only 0 (may see) and -inf (hidden); got {mask.dtype} with "
            f"other numbers. If they are 0/1, convert with .bool() and mind what 1 means; if they "
            f"are added to scores, give them as bias=."
        )
    return lowest


def _as_bool(name: str, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise MaskError(
            f"{name} of integers must hold only 0 and 1; got values from {mask.min().item()} to "
            f"{mask.max().item()}. Document numbers go to Documents(ids)."
        )
    return mask.bool()


def _check_ndim(name: str, mask: Tensor, allowed: tuple[int, ...], shapes: str) -> None:
    if mask.ndim not in allowed:
        raise ShapeError(
            f"{name} must be {shapes}; got shape {tuple(mask.shape)}. Add or drop dimensions, "
            f"so that each axis is the one that you mean."
        )
