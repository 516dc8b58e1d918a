import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.positions.oracle import det, turned

from manyheads.errors import DeviceError, DTypeError, OptionError, PositionError, ShapeError
from manyheads.positions import Rotary, rotation

PAIRS = rotation.PAIRS


def as_heads(rows: object) -> torch.Tensor:
    """Rows (length, head_dim) as one head of one sequence, in float64."""
    return torch.tensor(np.asarray(rows, float))[None, None]


def logits(q: torch.Tensor, k: torch.Tensor) -> np.ndarray:
    return (q @ k.mT)[0, 0].numpy()


X, Y = [[1, 2, 3, 4, 5, 6]], [[2, -1, 0.5, 3, -2, 1]]


def test_both_pair_styles_give_the_numbers_worked_by_hand() -> None:
    by_hand = {
        "interleaved": [-1.27223251, -1.83886499, 2.41576969, 4.3776771, 4.96111601, 6.03219097],
        "halves": [-1.55447253, 1.28665089, 2.96115778, -3.81884998, 5.2291997, 6.01926445],
    }
    for pairs, expected in by_hand.items():
        out = Rotary(6, pairs=pairs)(as_heads(X), 3).flatten()
        np.testing.assert_allclose(out, expected, rtol=1e-8)
        assert out.norm() == pytest.approx(91**0.5)


def test_the_pair_styles_agree_once_the_features_of_both_sides_are_reordered() -> None:
    order = [0, 2, 4, 1, 3, 5]
    halves, interleaved = Rotary(6), Rotary(6, pairs="interleaved")

    def logit(rotary: Rotary, x: torch.Tensor, y: torch.Tensor) -> float:
        return logits(rotary(x, 3), rotary(y, 1)).item()

    assert logit(interleaved, as_heads(X), as_heads(Y)) == pytest.approx(5.61756208)
    reordered = as_heads(X)[..., order], as_heads(Y)[..., order]
    assert logit(halves, *reordered) == pytest.approx(5.61756208)
    assert logit(halves, as_heads(X), as_heads(Y)) == pytest.approx(-14.7282447)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_far_positions_keep_apart_when_the_model_is_cast(dtype: torch.dtype) -> None:
    # Positions rounded to bfloat16 would merge 256 and 257; so would rounded frequencies, later.
    pair_0 = {256: -0.0397907599, 257: 0.819305529, 4095: -0.0659759966, 15962: -0.908015901}
    pair_20 = {256: -0.255892649, 257: -0.309821336, 4095: -0.587760045, 15962: 0.632301736}
    positions = torch.tensor([[*pair_0, 131071]])
    x = torch.zeros(1, 1, 5, 128, dtype=dtype)
    x[..., :64] = 1  # turned into its own cosines
    cosines = Rotary(128).to(torch.bfloat16)(x, positions)[0, 0].double().numpy()
    rounding = positions[0].numpy() * 2.0**-23 + (2**-8 if dtype == torch.bfloat16 else 1e-6)
    for column, right in (
        (0, [*pair_0.values(), -0.817983499]),
        (20, [*pair_20.values(), 0.883451347]),
    ):
        assert (np.abs(cosines[:, column] - right) <= rounding).all()


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("base", [0, 257, 15962, 10**6])
def test_a_logit_knows_the_distance_alone(base: int, pairs: str) -> None:
    q, k = as_heads(det(1, 8, k=41)), as_heads(det(1, 8, k=42))
    rotary = Rotary(8, pairs=pairs)
    if pairs == "halves":
        assert logits(rotary(q, base + 5), rotary(k, base)).item() == pytest.approx(-0.203077467)
    near = logits(rotary(q, 5), rotary(k)).item()
    assert logits(rotary(q, base + 5), rotary(k, base)).item() == pytest.approx(near, abs=1e-6)
    short = logits(rotary(q.float(), base + 5), rotary(k.float(), base)).item()
    reach = q.norm() * k.norm()
    assert abs(short - near) <= reach * ((base + 5) * 2.0**-23 + 1e-6)


@given(st.integers(0, 10**6), st.integers(-50, 50), st.integers(1, 4))
def test_any_offset_leaves_every_logit_as_it_is(offset: int, shift: int, half: int) -> None:
    q, k = torch.randn(2, 1, 2, 3, 2 * half, dtype=torch.float64)
    rotary, start = Rotary(2 * half, base=100.0), abs(shift)
    near = rotary(q, start + shift) @ rotary(k, start).mT
    far = rotary(q, start + shift + offset) @ rotary(k, start + offset).mT
    torch.testing.assert_close(far, near, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("chunks", [(5,), (4, 1), (2, 2, 1), (1, 1, 1, 1, 1)])
def test_any_split_of_a_sequence_gives_the_same_logits(chunks: tuple[int, ...]) -> None:
    by_hand = [-0.39999441, -0.24962365, -2.20185471, -2.17237932, -0.203125]
    rotary, done, parts = Rotary(4), 0, []
    for part in as_heads(det(5, 4, k=44)).split(chunks, dim=2):
        parts.append(rotary(part, done))
        done += part.shape[2]
    q = rotary(as_heads(det(5, 4, k=43))[:, :, 4:], 4)
    np.testing.assert_allclose(logits(q, torch.cat(parts, dim=2))[0] / 2, by_hand, rtol=1e-8)


def test_left_padding_changes_no_logit_when_real_tokens_are_counted() -> None:
    by_hand = [2.14034809, -0.363035566, -2.1890386, -1.703125]
    rotary, k, q = Rotary(4), as_heads(det(4, 4, k=27)), as_heads(det(1, 4, k=28))
    padded = torch.cat((torch.zeros(1, 1, 2, 4).double(), k[:, :, :3]), dim=2)
    keys = rotary(padded, torch.tensor([[-1, -1, 0, 1, 2]]))[:, :, 2:]
    keys = torch.cat((keys, rotary(k[:, :, 3:], torch.tensor([[3]]))), dim=2)
    np.testing.assert_allclose(logits(rotary(q, 3), keys)[0] / 2, by_hand, rtol=1e-8)
    shifted = logits(rotary(q, 5), rotary(k, 2))[0] / 2
    np.testing.assert_allclose(shifted, by_hand, rtol=1e-8)
    mixed = torch.cat((rotary(k[:, :, :3]), rotary(k[:, :, 3:], 5)), dim=2)
    assert logits(rotary(q, 5), mixed)[0, 0] / 2 == pytest.approx(2.79620909)  # the fault's number


@pytest.mark.parametrize("pairs", PAIRS)
@given(
    positions=st.lists(
        st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=2, max_size=2
    ),
    half=st.integers(1, 5),
)
def test_any_positions_agree_with_numpy(pairs: str, positions: list[list[int]], half: int) -> None:
    x = torch.randn(2, 2, 3, 2 * half, dtype=torch.float64)
    given_positions = torch.tensor(positions)
    got = Rotary(2 * half, pairs=pairs, base=300.0)(x, given_positions)
    expected = turned(x.numpy(), given_positions.unsqueeze(1).numpy(), pairs, base=300.0)
    np.testing.assert_allclose(got, expected, atol=1e-8)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("start", [-3, 0, 61, 10**6])
@pytest.mark.parametrize("length", [0, 1, 5, 64, 65, 300])
def test_none_an_int_and_tensors_say_the_same_thing(length: int, start: int, pairs: str) -> None:
    rotary, x = Rotary(8, pairs=pairs), torch.randn(2, 3, length, 8)
    run = torch.arange(start, start + length)
    one_by_one = rotary(x, run)
    for given_positions in (start, run.expand(2, -1), run[None], run.to(torch.int32)):
        torch.testing.assert_close(rotary(x, given_positions), one_by_one, rtol=0, atol=1e-6)
    if start == 0:
        assert torch.equal(rotary(x), rotary(x, 0))


def test_where_there_is_no_token_nothing_is_turned() -> None:
    rotary, x = Rotary(8), torch.randn(2, 3, 4, 8)
    positions = torch.tensor([[-1, -(2**62), 0, 5], [0, 1, 2, -1]])
    out = rotary(x, positions)
    assert torch.equal(out[0, :, :2], x[0, :, :2])
    assert torch.equal(out[1, :, 3], x[1, :, 3])


@pytest.mark.parametrize("large", [0, 2**60])
@pytest.mark.parametrize("pairs", PAIRS)
def test_gradients_are_right(pairs: str, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "_LARGE", large)
    rotary = Rotary(6, pairs=pairs)
    x = torch.randn(2, 2, 3, 6, dtype=torch.float64, requires_grad=True)
    for positions in (None, 7, torch.tensor([[0, -1, 9], [4, 4, 4]])):
        assert torch.autograd.gradcheck(lambda x, at=positions: rotary(x, at), x)
        assert torch.autograd.gradgradcheck(lambda x, at=positions: rotary(x, at) ** 3, x)


@pytest.mark.parametrize("pairs", PAIRS)
def test_what_inference_made_serves_training(pairs: str) -> None:
    rotary = Rotary(8, pairs=pairs, base=777.0)  # a base of its own: nothing is kept for it yet
    x = torch.randn(1, 2, 70, 8)
    with torch.inference_mode():
        rotary(x), rotary(x[:, :, :3]), rotary(x, torch.arange(70))
    x.requires_grad_()
    for out in (rotary(x), rotary(x[:, :, :3]), rotary(x, torch.arange(70))):
        out.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("pairs", PAIRS)
def test_what_is_kept_is_keyed_by_all_that_decides_it(pairs: str) -> None:
    x = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    for base in (10000.0, 500.0):
        for style in PAIRS:
            for start in (0, 70):
                for width in (8, 4):
                    for dtype in (torch.float64, torch.float32, torch.bfloat16):
                        got = Rotary(width, base=base, pairs=style)(x[..., :width].to(dtype), start)
                        at = np.arange(start, start + 4)
                        expected = turned(x[..., :width].numpy(), at, style, base=base)
                        tolerance = 4 * torch.finfo(dtype).eps * x.abs().max() + 1e-9
                        assert np.abs(got.double().numpy() - expected).max() <= tolerance + 70e-7


@pytest.mark.parametrize("pairs", PAIRS)
def test_one_turn_serves_queries_and_keys(pairs: str) -> None:
    rotary = Rotary(8, pairs=pairs)
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 1, 3, 8)
    for positions in (None, 5, torch.tensor([[0, 1, 2], [7, -1, 9]])):
        turn = rotary.at(positions, like=q)
        assert turn.cos.shape[-2:] == turn.sin.shape[-2:] == (3, 4)
        assert torch.equal(turn(q), rotary(q, positions))
        assert torch.equal(turn(k), rotary(k, positions))
        torch.testing.assert_close(
            turn(k.bfloat16()), rotary(k.bfloat16(), positions), atol=0.03, rtol=0
        )
        assert turn(k.double()).dtype == torch.float64
    with pytest.raises(ShapeError, match=r"^cos and sin must be \(length, pairs\) or "):
        turn(torch.randn(2, 4, 5, 8))
    with pytest.raises(ShapeError, match=r"^x must be \(batch, heads, length, head_dim\); "):
        turn(torch.randn(4, 3, 8))


@pytest.mark.parametrize("pairs", PAIRS)
def test_nothing_is_stored_so_nothing_can_be_spoilt(pairs: str) -> None:
    rotary, x = Rotary(8, pairs=pairs), torch.randn(1, 2, 3, 8)
    out = rotary(x, 300)
    assert rotary.state_dict() == {}
    assert not list(rotary.buffers())
    on_meta = Rotary(8, pairs=pairs, device="meta").to_empty(device="cpu")
    on_meta.load_state_dict({}, strict=True)
    with torch.device("meta"):
        born_on_meta = Rotary(8, pairs=pairs)
    cast = copy.deepcopy(rotary).to(torch.bfloat16).half()
    for other in (on_meta, born_on_meta, cast, pickle.loads(pickle.dumps(rotary))):
        assert torch.equal(other(x, 300), out)
    turn = pickle.loads(pickle.dumps(rotary.at(300, like=x)))
    assert torch.equal(turn(x), out)
    assert torch.equal(copy.deepcopy(turn)(x), out)


def test_on_a_meta_device_shapes_alone_are_worked_out() -> None:
    x = torch.empty(2, 3, 4, 8, device="meta", dtype=torch.bfloat16)
    for pairs in PAIRS:
        out = Rotary(8, pairs=pairs)(x, 5)
        assert out.shape == x.shape
        assert (out.device.type, out.dtype) == ("meta", torch.bfloat16)


@pytest.mark.parametrize("pairs", PAIRS)
def test_fake_tensors_leave_nothing_behind(pairs: str) -> None:
    rotary, x = Rotary(8, pairs=pairs, base=778.0), torch.randn(1, 2, 3, 8)
    with torch._subclasses.FakeTensorMode() as mode:
        assert rotary(mode.from_tensor(x)).shape == x.shape
    assert type(rotary(x)) is torch.Tensor
    torch.vmap(lambda x: rotary(x.unsqueeze(0)))(x)
    assert torch.equal(rotary(x), Rotary(8, pairs=pairs, base=778.0)(x))


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_compiles_whole(dtype: torch.dtype, pairs: str) -> None:
    torch.compiler.reset()
    rotary = Rotary(8, pairs=pairs)
    x = torch.randn(2, 3, 5, 8).to(dtype).requires_grad_()
    compiled = torch.compile(rotary, backend="aot_eager", fullgraph=True)
    tolerance = 4 * torch.finfo(dtype).eps
    for positions in (None, 4, 9, 300, torch.arange(5), torch.tensor([[2], [7]]).expand(2, 5)):
        outs = [f(x, positions) for f in (compiled, rotary)]
        torch.testing.assert_close(*outs, atol=4 * tolerance, rtol=tolerance)
        grads = [torch.autograd.grad(out.float().square().sum(), x)[0] for out in outs]
        torch.testing.assert_close(*grads, atol=16 * tolerance, rtol=4 * tolerance)


def test_a_decoding_loop_compiles_a_few_times_and_not_at_each_step() -> None:
    torch.compiler.reset()
    graphs = 0

    def count(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        nonlocal graphs
        graphs += 1
        return graph

    rotary, x = Rotary(8), torch.randn(1, 2, 1, 8)
    compiled = torch.compile(rotary, backend=count, fullgraph=True)
    for step in range(12):
        torch.testing.assert_close(compiled(x, step), rotary(x, step))
    assert graphs <= 3


@pytest.mark.parametrize("pairs", PAIRS)
def test_a_turn_may_enter_a_compiled_function(pairs: str) -> None:
    x = torch.randn(2, 3, 5, 8)
    turn = Rotary(8, pairs=pairs).at(2, like=x)
    compiled = torch.compile(lambda turn, x: turn(x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(turn, x), turn(x))


@pytest.mark.parametrize("pairs", PAIRS)
def test_it_exports_with_any_length(pairs: str) -> None:
    rotary, x = Rotary(8, pairs=pairs), torch.randn(2, 3, 5, 8)
    shapes = {"x": {2: torch.export.Dim("length", min=2, max=512)}}
    longer = torch.randn(2, 3, 70, 8)
    for strict in (False, True):
        exported = torch.export.export(rotary, (x,), dynamic_shapes=shapes, strict=strict)
        torch.testing.assert_close(exported.module()(longer), rotary(longer))


@pytest.mark.parametrize("pairs", PAIRS)
def test_it_maps_over_sequences_with_positions_of_their_own(pairs: str) -> None:
    rotary, x = Rotary(8, pairs=pairs), torch.randn(3, 2, 4, 8)
    positions = torch.tensor([[0, 1, 2, 3], [-1, 0, 1, 2], [9, 9, 9, 9]])
    mapped = torch.vmap(lambda x, at: rotary(x.unsqueeze(0), at)[0])(x, positions)
    torch.testing.assert_close(mapped, rotary(x, positions))


@pytest.mark.parametrize("pairs", PAIRS)
def test_autocast_leaves_the_dtype_of_the_features(pairs: str) -> None:
    rotary = Rotary(8, pairs=pairs)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(1, 2, 3, 8).to(dtype)
        expected = rotary(x, 1000)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(rotary(x, 1000), expected)


def test_it_prints_what_it_is() -> None:
    assert repr(Rotary(8, base=5e5)) == "Rotary(8, base=500000, pairs='halves')"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 7}, r"^head_dim must be even, .*; got head_dim=7\. Choose head_dim=8, or "),
        ({"head_dim": 0}, r"^head_dim must be an int of at least 1; got head_dim=0\. "),
        (
            {"head_dim": 8, "base": 0.0},
            r"^base must be a finite number of at least 1; got base=0.0",
        ),
        ({"head_dim": 8, "pairs": "half"}, r"^pairs must be 'halves' or 'interleaved'; got pairs="),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Rotary(**options)


def test_what_is_not_heads_of_this_width_is_refused() -> None:
    rotary = Rotary(8)
    message = r"^x must have head_dim=8 features a head; got head_dim=6\. Build Rotary with the"
    with pytest.raises(ShapeError, match=message):
        rotary(torch.zeros(1, 2, 3, 6))
    with pytest.raises(ShapeError, match=r"^x must be \(batch, heads, length, head_dim\); got "):
        rotary(torch.zeros(2, 3, 8))
    with pytest.raises(DTypeError, match=r"^x must be of floats; got x=torch.int64\. "):
        rotary(torch.zeros(1, 2, 3, 8).long())


def test_positions_that_do_not_fit_are_refused() -> None:
    rotary, x = Rotary(8), torch.zeros(2, 1, 3, 8)
    with pytest.raises(PositionError, match=r"^positions must be integers; got .*torch.float32\. "):
        rotary(x, torch.zeros(3))
    with pytest.raises(PositionError, match=r"^positions must be \(length,\) or .*\(4,\)\. "):
        rotary(x, torch.arange(4))
    with pytest.raises(PositionError, match=r"got shape \(1,\)\. "):
        rotary(x, torch.tensor([5]))
    with pytest.raises(DeviceError, match=r"^positions must be where x is, on cpu; got "):
        rotary(x, torch.arange(3, device="meta"))
