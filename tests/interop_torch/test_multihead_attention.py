"""`MultiHeadAttention` does what torch.nn.MultiheadAttention does, given its weights."""

import pytest
import torch
from tests.interop_torch.twins import (
    KINDS,
    Masks,
    Twins,
    close,
    every_dtype,
    every_kind,
    masks,
    random,
)
from torch import Tensor, nn

import manyheads as mh

BATCH, HEADS, WIDTH = 3, 4, 24


def twins(
    dtype: torch.dtype, *, bias: bool = True, projections: str = "separate", **widths: int
) -> Twins:
    theirs = nn.MultiheadAttention(
        WIDTH, HEADS, bias=bias, batch_first=True, dtype=dtype,
        kdim=widths.get("d_context"), vdim=widths.get("d_value"),
    )  # fmt: skip
    ours = mh.MultiHeadAttention(
        WIDTH, HEADS, bias=bias, projections=projections, dtype=dtype, **widths
    )
    return Twins(ours, theirs)


def cast(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return mask if mask is None or mask.dtype == torch.bool else mask.to(dtype)


def agree(pair: Twins, said: Masks, *streams: Tensor, real: Tensor | None = None) -> None:
    """Compare by x, by x and context, or by x, context and value."""
    dtype = streams[0].dtype

    def theirs(*given: Tensor) -> Tensor:
        query, key, value = given[0], given[min(1, len(given) - 1)], given[-1]
        options = {"attn_mask": cast(said.attn, dtype), "key_padding_mask": said.padding}
        return pair.theirs(query, key, value, **options, need_weights=False)[0]

    mask = said.ours(HEADS)
    pair.agree(lambda *given: pair.ours(*given, mask=mask), theirs, *streams, real=real)


@every_dtype
@every_kind
@pytest.mark.parametrize("projections", ["separate", "packed"])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_agrees(bias: bool, projections: str, kind: str, dtype: torch.dtype) -> None:
    said = masks(kind, BATCH, HEADS, 7, 7)
    pair = twins(dtype, bias=bias, projections=projections)
    agree(pair, said, random(BATCH, 7, WIDTH, dtype=dtype), real=said.real)


@every_dtype
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "causal" not in kind])
@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 9), (9, 5), (1, 4)])
def test_attention_to_a_context_agrees(
    q_len: int, kv_len: int, kind: str, dtype: torch.dtype
) -> None:
    said = masks(kind, BATCH, HEADS, q_len, kv_len)
    x = random(BATCH, q_len, WIDTH, dtype=dtype)
    context = random(BATCH, kv_len, WIDTH, dtype=dtype, seed=1)
    agree(twins(dtype), said, x, context)
    agree(twins(dtype, projections="packed"), said, x, context)


@every_dtype
@pytest.mark.parametrize("kind", ["nothing", "random", "padding", "random and padding"])
@pytest.mark.parametrize("widths", [(10, 14), (10, 10), (24, 14), (24, 24)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_keys_and_values_of_other_widths_agree(
    bias: bool, widths: tuple[int, int], kind: str, dtype: torch.dtype
) -> None:
    said = masks(kind, BATCH, HEADS, 5, 9)
    pair = twins(dtype, bias=bias, d_context=widths[0], d_value=widths[1])
    x = random(BATCH, 5, WIDTH, dtype=dtype)
    context = random(BATCH, 9, widths[0], dtype=dtype, seed=1)
    value = random(BATCH, 9, widths[1], dtype=dtype, seed=2)
    agree(pair, said, x, context, value)


@every_dtype
@every_kind
def test_weights_agree_head_by_head(kind: str, dtype: torch.dtype) -> None:
    said = masks(kind, BATCH, HEADS, 7, 7)
    pair, x = twins(dtype), random(BATCH, 7, WIDTH, dtype=dtype)
    out, weights = pair.ours.with_weights(x, mask=said.ours(HEADS))
    expected_out, expected = pair.theirs(
        x, x, x, attn_mask=cast(said.attn, dtype), key_padding_mask=said.padding,
        need_weights=True, average_attn_weights=False,
    )  # fmt: skip
    rows = slice(None) if said.real is None else said.real
    close(out[rows], expected_out[rows])
    close(weights.transpose(1, 2)[rows], expected.transpose(1, 2)[rows])


@pytest.mark.parametrize("projections", ["separate", "packed"])
def test_a_causal_hint_beside_its_mask_is_our_rule(projections: str) -> None:
    pair = twins(torch.float64, projections=projections)
    hidden = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    pair.agree(
        lambda x: pair.ours(x, mask=mh.Causal()),
        lambda x: pair.theirs(x, x, x, attn_mask=hidden, is_causal=True, need_weights=False)[0],
        random(BATCH, 7, WIDTH, dtype=torch.float64),
    )


def test_where_torch_gives_nan_we_give_the_bias() -> None:
    """The one place where the two must differ: a query that sees nobody."""
    pair = twins(torch.float64)
    x = random(BATCH, 4, WIDTH, dtype=torch.float64)
    nobody = torch.zeros(4, 4, dtype=torch.bool)
    nobody[2] = True
    theirs, _ = pair.theirs(x, x, x, attn_mask=nobody, need_weights=True)
    ours = pair.ours(x, mask=mh.from_attn_mask(nobody))
    assert theirs[:, 2].isnan().all()
    close(ours[:, 2], pair.ours.out_proj.bias.expand(BATCH, -1))
    close(ours[:, [0, 1, 3]], theirs[:, [0, 1, 3]])
