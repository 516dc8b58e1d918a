import pickle

import numpy as np
import pytest
import torch
from tests.positions.oracle import turned

import manyheads as mh
from manyheads.errors import OptionError
from manyheads.positions import Scaling

DYNAMIC = mh.DynamicNTKScaling(4.0, original_length=8)
LONG = mh.LongRoPE((1.0, 1.1, 1.2, 1.3), (1.0, 2.0, 4.0, 8.0), original_length=8, factor=4.0)
KINDS = [
    mh.LinearScaling(4.0),
    mh.NTKScaling(4.0),
    DYNAMIC,
    mh.YaRN(4.0, 8),
    mh.Llama3Scaling(4.0, original_length=8),
    LONG,
]
GROWING = [DYNAMIC, LONG]


def layer_with(scaling: Scaling | None, **options: object) -> mh.MultiHeadAttention:
    torch.manual_seed(0)
    rotary = mh.Rotary(8, scaling=scaling, **options)
    return mh.MultiHeadAttention(16, 2, rotary=rotary, dtype=torch.float64)


def test_linear_scaling_reads_positions_as_divided() -> None:
    x = torch.randn(1, 1, 3, 8, dtype=torch.float64)
    out = mh.Rotary(8, scaling=mh.LinearScaling(4.0))(x, 4)
    np.testing.assert_allclose(out, turned(x.numpy(), np.array([1.0, 1.25, 1.5]), "halves"))


@pytest.mark.parametrize("scaling", KINDS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
@pytest.mark.parametrize("start", [0, 3, 100])
def test_every_way_of_giving_positions_is_the_same(
    start: int, pairs: str, scaling: Scaling
) -> None:
    rotary = mh.Rotary(8, scaling=scaling, pairs=pairs)
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    out = rotary(x, start)
    at = start + torch.arange(5)
    for positions, length in (
        (at, None),
        (at.expand(2, 5), None),
        (at, torch.tensor([[start + 5]])),
    ):
        torch.testing.assert_close(rotary(x, positions, length=length), out)
    torch.testing.assert_close(rotary(x, start, length=start + 5), out)
    torch.testing.assert_close(rotary(x.float(), start), out.float(), atol=1e-4, rtol=1e-4)
    assert rotary(x.bfloat16(), start).dtype == torch.bfloat16


@pytest.mark.parametrize("scaling", KINDS, ids=lambda s: type(s).__name__)
def test_a_scaled_rotary_compiles_whole(scaling: Scaling) -> None:
    torch.compiler.reset()
    rotary, x = mh.Rotary(8, scaling=scaling), torch.randn(2, 3, 5, 8, dtype=torch.float64)
    compiled = torch.compile(rotary, backend="aot_eager", fullgraph=True)
    for positions in (3, 9, 300, torch.arange(5) + 7, torch.tensor([[0], [7]]).expand(2, 5)):
        torch.testing.assert_close(compiled(x, positions), rotary(x, positions))


@pytest.mark.parametrize("scaling", KINDS, ids=lambda s: type(s).__name__)
def test_the_gradient_of_a_scaled_turn_is_that_of_its_arithmetic(scaling: Scaling) -> None:
    for pairs in ("halves", "interleaved"):
        rotary = mh.Rotary(8, scaling=scaling, pairs=pairs)
        x = torch.randn(1, 1, 3, 8, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, turn=rotary: turn(x, 9), x)
        large = torch.randn(4, 8, 600, 8, dtype=torch.float64)  # takes the path for large tensors
        upstream = torch.randn_like(large)
        (grad,) = torch.autograd.grad(rotary(large.requires_grad_()), large, upstream)
        turn = rotary.at(like=large)
        back = mh.positions.rotate(upstream, turn.cos, -turn.sin, pairs=pairs)
        torch.testing.assert_close(grad, back)


@pytest.mark.parametrize("scaling", GROWING, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("split", [[12], [1] * 12, [7, 1, 1, 3], [8, 4], [9, 3]], ids=str)
def test_a_cached_step_is_the_last_of_one_pass_over_the_text_so_far(
    split: list[int], scaling: Scaling
) -> None:
    layer, x = layer_with(scaling), torch.randn(2, 12, 16, dtype=torch.float64)
    cache, seen = mh.GrowingCache(), 0
    for count in split:
        out = layer(x[:, seen : seen + count], mask=mh.Causal(), cache=cache)
        seen += count
        whole = layer(x[:, :seen], mask=mh.Causal())
        torch.testing.assert_close(out, whole[:, seen - count :])


@pytest.mark.parametrize("scaling", GROWING, ids=lambda s: type(s).__name__)
def test_each_row_of_a_batch_has_its_own_length(scaling: Scaling) -> None:
    layer, x = layer_with(scaling), torch.randn(2, 12, 16, dtype=torch.float64)
    alone = layer(x[:1, 6:], mask=mh.Causal())
    assert (layer(x[:1], mask=mh.Causal())[:, 6:] - alone).abs().max() > 1e-6
    positions = torch.stack((torch.arange(12) - 6, torch.arange(12)))
    batched = layer(x, mask=mh.Causal(), positions=positions)
    torch.testing.assert_close(batched[:1, 6:], alone)
    torch.testing.assert_close(batched[1:], layer(x[1:], mask=mh.Causal()))
    lengths = mh.Padding(lengths=torch.tensor([6, 12]))
    right = layer(
        torch.cat((x[:1, 6:], x[:1, :6]), dim=1).expand(2, -1, -1), mask=lengths & mh.Causal()
    )
    torch.testing.assert_close(right[:1, :6], alone)
    cache, steps = mh.GrowingCache(), []
    for i in range(12):
        at = positions[:, i : i + 1]
        steps.append(layer(x[:, i : i + 1], mask=mh.Causal(), positions=at, cache=cache))
    torch.testing.assert_close(steps[-1][1:], batched[1:, -1:])
    torch.testing.assert_close(steps[-1][:1], batched[:1, -1:])


@pytest.mark.parametrize("scaling", GROWING, ids=lambda s: type(s).__name__)
def test_a_context_is_turned_for_its_own_length(scaling: Scaling) -> None:
    layer = layer_with(scaling)
    x, context = (torch.randn(1, n, 16, dtype=torch.float64) for n in (3, 12))
    whole = layer(x, context, positions=4)
    cache = mh.CrossCache()
    first = layer(x[:, :1], context, positions=4, cache=cache)
    rest = layer(x[:, 1:], positions=5, cache=cache)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), whole)


@pytest.mark.parametrize("scaling", KINDS, ids=lambda s: type(s).__name__)
def test_texts_of_the_trained_length_are_left_alone_by_what_grows(scaling: Scaling) -> None:
    x = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    same = torch.equal(mh.Rotary(8, scaling=scaling)(x), mh.Rotary(8)(x))
    assert same == (scaling is DYNAMIC)


def test_part_of_a_head_turns_and_the_rest_stays() -> None:
    rotary = mh.Rotary(10, rotary_dim=4, scaling=mh.YaRN(4.0, 8))
    x = torch.randn(2, 1, 5, 10, dtype=torch.float64)
    out = rotary(x, 3)
    assert torch.equal(out[..., 4:], x[..., 4:])
    alone = mh.Rotary(4, scaling=mh.YaRN(4.0, 8))(x[..., :4], 3)
    torch.testing.assert_close(out[..., :4], alone)
    assert mh.Rotary(7, rotary_dim=4)(x[..., :7]).shape == (2, 1, 5, 7)


def test_scalings_compare_pickle_and_print() -> None:
    for scaling in KINDS:
        assert pickle.loads(pickle.dumps(scaling)) == scaling
        assert hash(scaling) == hash(pickle.loads(pickle.dumps(scaling)))
    rotary = mh.Rotary(8, rotary_dim=4, scaling=mh.LinearScaling(4.0))
    assert repr(rotary) == (
        "Rotary(8, base=10000, pairs='halves', rotary_dim=4, scaling=LinearScaling(factor=4.0))"
    )
    as_a_config = mh.LongRoPE([1.0, 1.1, 1.2, 1.3], list(LONG.long), 8, 4.0)
    assert as_a_config == LONG


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mh.LinearScaling(0.5), r"^factor must be a finite number of at least 1; got "),
        (lambda: mh.NTKScaling(float("inf")), r"^factor must be a finite .* got factor=inf\. "),
        (lambda: mh.DynamicNTKScaling(2.0, 0), r"^original_length must be an int of at least 1; "),
        (lambda: mh.YaRN(2.0, 8, ramp="round"), r"^ramp must be one of rounded, unrounded, turns"),
        (lambda: mh.YaRN(2.0, 8, fast=1.0, slow=2.0), r"^slow must be above 0 and below fast; "),
        (lambda: mh.Rotary(8, base=1.0, scaling=mh.YaRN(2.0, 8)), r"^base must be above 1 for "),
        (lambda: mh.Llama3Scaling(2.0, 8, low=4.0), r"^low must be above 0 and below high; got "),
        (lambda: mh.LongRoPE((0.0,), (1.0,), 8, 2.0), r"^short must hold finite numbers above 0; "),
        (lambda: mh.Rotary(6, scaling=LONG), r"^short and long must have a factor for each of 3 "),
        (lambda: mh.Rotary(2, scaling=mh.NTKScaling(2.0)), r"^a rotary with NTK scaling must turn"),
        (lambda: mh.Rotary(8, rotary_dim=5), r"^rotary_dim must be even and at most head_dim=8; "),
        (lambda: mh.Rotary(8, rotary_dim=10), r"got rotary_dim=10\. A config's share of a head: "),
        (
            lambda: mh.Rotary(8, scaling="yarn"),
            r"^scaling must be an object such as YaRN\(\.\.\.\)",
        ),
        (
            lambda: mh.Rotary(8, scaling=DYNAMIC, axes=mh.Axial(2)),
            r"^a scaling that depends on the length must go without axes; got ",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()
