"""A view counts as the numbers it shows: strides change no result, and no sample meets another."""

from collections.abc import Callable

import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import every_backend, every_dtype, near
from tests.cases.layers import plain_layer
from torch import Tensor

import manyheads as mh
from manyheads.errors import OptionError

Build = Callable[[tuple[int, ...], int, torch.dtype], Tensor]


def numbers(shape: tuple[int, ...], k: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor(det(shape, k), dtype=dtype)


def transposed(shape: tuple[int, ...], k: int, dtype: torch.dtype) -> Tensor:
    batch, heads, length, width = shape
    return numbers((batch, length, heads, width), k, dtype).transpose(1, 2)


def width_first(shape: tuple[int, ...], k: int, dtype: torch.dtype) -> Tensor:
    batch, heads, length, width = shape
    return numbers((batch, heads, width, length), k, dtype).transpose(2, 3)


def length_first(shape: tuple[int, ...], k: int, dtype: torch.dtype) -> Tensor:
    batch, heads, length, width = shape
    return numbers((length, batch, heads, width), k, dtype).movedim(0, 2)


def every_second(shape: tuple[int, ...], k: int, dtype: torch.dtype) -> Tensor:
    return numbers(tuple(2 * size for size in shape), k, dtype)[::2, 1::2, ::2, 1::2]


def expanded(shape: tuple[int, ...], k: int, dtype: torch.dtype) -> Tensor:
    return numbers((1, 1, *shape[2:]), k, dtype).expand(shape)


def one_number(shape: tuple[int, ...], k: int, dtype: torch.dtype) -> Tensor:
    return numbers((1, 1, 1, 1), k, dtype).expand(shape)


def part_of_packed(shape: tuple[int, ...], k: int, dtype: torch.dtype) -> Tensor:
    batch, heads, length, width = shape
    packed = numbers((batch, length, 3 * heads * width), k, dtype)
    part = packed[..., heads * width : 2 * heads * width]
    return part.unflatten(-1, (heads, width)).transpose(1, 2)


VIEWS = [
    *(transposed, width_first, length_first, every_second, expanded, one_number, part_of_packed),
]


@every_backend
@every_dtype
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
@pytest.mark.parametrize("value_width", [4, 6])
def test_views_give_what_their_contiguous_copies_give(
    value_width: int, view: Build, dtype: torch.dtype, backend: str
) -> None:
    """VIEW-01."""
    q, k, v = (
        view((2, 4, 5, 4), 1, dtype),
        view((2, 2, 5, 4), 2, dtype),
        view((2, 2, 5, value_width), 3, dtype),
    )
    upstream = view((2, 4, 5, value_width), 4, dtype)
    results = []
    for inputs in ((q, k, v), [x.contiguous() for x in (q, k, v)]):
        leaves = [x.detach().requires_grad_() for x in inputs]
        output = mh.attention(*leaves, mh.Causal(), backend=backend)
        results.append([output, *torch.autograd.grad(output, leaves, upstream)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@every_backend
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_bias_and_a_mask_may_be_views(view: Build, backend: str) -> None:
    q, k, v = (numbers((2, 4, 5, 4), number, torch.float64) for number in (1, 2, 3))
    bias = view((2, 4, 5, 5), 4, torch.float64)
    seen = view((2, 4, 5, 5), 5, torch.float64) > -1
    got = mh.attention(q, k, v, seen, bias=bias, backend=backend)
    expected = mh.attention(q, k, v, seen.contiguous(), bias=bias.contiguous(), backend=backend)
    torch.testing.assert_close(got, expected)


@every_backend
def test_arguments_are_left_alone(backend: str) -> None:
    q, k, v = (numbers((2, 2, 5, 4), number, torch.float64) for number in (1, 2, 3))
    k[0, :, 3:], v[0, :, 3:] = torch.nan, torch.inf
    before = [x.clone() for x in (q, k, v)]
    mh.attention(q, k, v, mh.Padding(lengths=torch.tensor([3, 5])), backend=backend)
    for x, copy in zip((q, k, v), before, strict=True):
        torch.testing.assert_close(x, copy, rtol=0, atol=0, equal_nan=True)


@every_backend
@pytest.mark.parametrize("mask", [None, mh.Causal(), mh.Padding(lengths=torch.tensor([3, 5, 1]))])
def test_one_sample_never_changes_another(mask: mh.Mask | None, backend: str) -> None:
    q, k, v = (numbers((3, 2, 5, 4), number, torch.float64) for number in (1, 2, 3))
    before = mh.attention(q, k, v, mask, backend=backend)
    for sample in range(3):
        others = [other for other in range(3) if other != sample]
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[sample] = x[sample] * -1.5 + 0.25
        after = mh.attention(*changed, mask, backend=backend)
        assert torch.equal(after[others], before[others])
        assert not torch.allclose(after[sample], before[sample])


def test_heads_are_merged_token_by_token() -> None:
    """VIEW-01: head 0 gives features 0 and 1, head 1 gives 2 and 3; nothing slides along time."""
    x = torch.tensor([[[0.0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]], dtype=torch.float64)
    layer = plain_layer(4, 2)
    near(layer(x, mask=mh.Window(1)), x.numpy())  # each token takes its own value
    # The first head keeps to its own token, the second takes that of the token before.
    before = mh.Rule(lambda head, q, kv: kv == (q - 1).clamp(min=0), "the one before")
    shifted = layer(x, mask=mh.PerHead((mh.Window(1), before)))
    assert shifted.tolist() == [[[0, 1, 6, 7], [2, 3, 6, 7], [4, 5, 8, 9]]]


def test_a_width_that_no_head_count_divides_is_refused_with_those_that_do() -> None:
    with pytest.raises(OptionError, match=r"d_model=10; got num_heads=4. These do: 1, 2, 5, 10\."):
        mh.MultiHeadAttention(10, 4)


@pytest.mark.parametrize("projections", ["separate", "packed"])
@pytest.mark.parametrize("context", [False, True])
def test_a_layer_reads_views_as_their_copies(context: bool, projections: str) -> None:
    layer = mh.MultiHeadAttention(8, 2, projections=projections, dtype=torch.float64)
    inputs = [
        torch.randn(5, 2, 8, dtype=torch.float64).transpose(0, 1),
        torch.randn(2, 8, 5, dtype=torch.float64).transpose(1, 2),
        torch.randn(1, 1, 8, dtype=torch.float64).expand(2, 5, 8),
        torch.randn(4, 10, 16, dtype=torch.float64)[::2, ::2, ::2],
    ]
    for x in inputs:
        other = (inputs[0],) if context else ()
        copies = (x.contiguous() for x in other)
        near(layer(x, *other), layer(x.contiguous(), *copies).detach().numpy())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_a_layer_never_lets_samples_meet(shape: tuple[int, int], training: bool) -> None:
    batch, length = shape
    layer = mh.EncoderLayer(8, 2, 16, dropout=0.0, dtype=torch.float64).train(training)
    x = torch.randn(batch, length, 8, dtype=torch.float64)
    before = layer(x)
    changed = x.clone()
    changed[1] += 1.0
    after = layer(changed)
    others = [0, *range(2, batch)]
    near(after[others], before[others].detach().numpy())
    assert not torch.allclose(after[1], before[1])
