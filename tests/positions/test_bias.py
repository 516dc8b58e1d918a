import math

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import DeviceError, DTypeError, OptionError, ShapeError
from manyheads.functional import fused
from manyheads.laws.law import TOLERANCE
from manyheads.positions import alibi_slopes, distances

SIZES = [(7, 7), (1, 9), (5, 9), (9, 5), (33, 65), (1, 1)]
RAGGED = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 7]])


def make(kind: str, num_heads: int = 4, head_dim: int = 8) -> mh.Bias:
    torch.manual_seed(1)
    bias = {
        "alibi": lambda: mh.ALiBi(num_heads),
        "learned alibi": lambda: mh.ALiBi(num_heads, learned=True),
        "t5": lambda: mh.T5Bias(num_heads, num_buckets=8, max_distance=20),
        "t5 past": lambda: mh.T5Bias(num_heads, num_buckets=7, max_distance=20, reach="past"),
        "transformer xl": lambda: mh.TransformerXLBias(num_heads, head_dim, 6),
        "shaw": lambda: mh.ShawBias(num_heads, head_dim, max_distance=3),
    }[kind]()
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    return bias


KINDS = ["alibi", "learned alibi", "t5", "t5 past", "transformer xl", "shaw"]


def by_hand(bias: mh.Bias, kind: str, q: Tensor, k: Tensor, q_at: Tensor, kv_at: Tensor) -> Tensor:
    """The bias pair by pair, as the papers write it."""
    scale = q.shape[-1] ** -0.5
    out = q.new_zeros(*q.shape[:3], k.shape[2])
    group = q.shape[1] // k.shape[1]
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, out.shape)).tolist():
        away = int(q_at[b, i] - kv_at[b, j])
        if "alibi" in kind:
            number = -alibi_slopes(bias.num_heads)[h] * abs(away)
            if bias.slopes is not None:
                number = -bias.slopes[h] * abs(away)
        elif "t5" in kind:
            number = bias.table[bias.buckets(torch.tensor(-away)), h]
        elif kind == "shaw":
            number = scale * q[b, h, i] @ bias.table[max(-3, min(3, -away)) + 3]
        else:
            angles = [away * 10000 ** (-2 * p / 6) for p in range(3)]
            wave = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=q.dtype)
            r = (bias.r_proj.weight @ wave).view(bias.num_heads, -1)[h]
            number = scale * (bias.u[h] @ k[b, h // group, j] + (q[b, h, i] + bias.v[h]) @ r)
        out[b, h, i, j] = number
    return out


def drawn(q_len: int, kv_len: int, kv_heads: int = 2, dtype: torch.dtype = torch.float64):
    shapes = (4, q_len), (kv_heads, kv_len), (kv_heads, kv_len)
    return tuple(torch.randn(2, *shape, 8, dtype=dtype, requires_grad=True) for shape in shapes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("places", ["runs", "rows", "ragged"])
def test_each_bias_is_its_papers_pair_by_pair(places: str, kind: str) -> None:
    bias = make(kind).double()
    q, k, _ = drawn(3, 5)
    q_pos, kv_pos = 6, 2
    q_at, kv_at = (6 + torch.arange(3)).expand(2, 3), (2 + torch.arange(5)).expand(2, 5)
    if places == "rows":
        q_pos, kv_pos = q_at[0], kv_at[0]
    elif places == "ragged":
        q_pos = q_at = RAGGED[:, 2:]
        kv_pos = kv_at = RAGGED
    expected = by_hand(bias, kind, q, k, q_at, kv_at)
    found = bias(q, k, q_pos, kv_pos, scale=8**-0.5)
    torch.testing.assert_close(found.expand(expected.shape), expected)
    leaves = [q, k, *bias.parameters()]
    upstream = torch.randn_like(expected)
    if found.requires_grad:
        grads = (
            torch.autograd.grad(x.expand_as(expected), leaves, upstream, allow_unused=True)
            for x in (found, expected)
        )
        for ours, right in zip(*grads, strict=True):
            zero = torch.zeros(())
            assert torch.allclose(zero if ours is None else ours, zero if right is None else right)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
@pytest.mark.parametrize("mask", [None, mh.Causal(), mh.Causal() & mh.Window(3)], ids=repr)
def test_attention_adds_what_the_bias_writes(
    mask: mh.Mask | None, q_len: int, kv_len: int, kind: str
) -> None:
    bias = make(kind).double()
    q, k, v = drawn(q_len, kv_len)
    first = kv_len - q_len
    written = bias(q, k, first, 0, scale=8**-0.5)
    if mask is None and first < 0:  # the first queries are nowhere, and see nobody
        written = written.masked_fill(torch.arange(q_len)[:, None] < -first, -torch.inf)
    expected = mh.attention(q, k, v, mask, bias=written, backend="reference")
    out = mh.attention(q, k, v, mask, bias=bias)
    torch.testing.assert_close(out, expected)
    leaves = [q, k, v, *bias.parameters()]
    upstream = torch.randn_like(out)
    for ours, right in zip(
        *(torch.autograd.grad(x, leaves, upstream) for x in (out, expected)), strict=True
    ):
        torch.testing.assert_close(ours, right)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [[9], [1] * 9, [4, 1, 3, 1]], ids=str)
def test_chunks_with_a_cache_equal_one_pass(split: list[int], kind: str) -> None:
    layer = mh.MultiHeadAttention(32, 4, num_kv_heads=2, dtype=torch.float64)
    bias, x = make(kind).double(), torch.randn(2, 9, 32, dtype=torch.float64)
    whole = layer(x, mask=mh.Causal(), bias=bias)
    cache, parts = mh.GrowingCache(), []
    for piece in x.split(split, dim=1):
        parts.append(layer(piece, mask=mh.Causal(), bias=bias, cache=cache))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(layer.with_weights(x, mask=mh.Causal(), bias=bias)[0], whole)


@pytest.mark.parametrize("kind", KINDS)
def test_left_padding_changes_nothing(kind: str) -> None:
    layer = mh.MultiHeadAttention(32, 4, dtype=torch.float64)
    bias, x = make(kind).double(), torch.randn(2, 5, 32, dtype=torch.float64)
    x[0, :2] = torch.nan
    positions = torch.stack((torch.arange(5) - 2, torch.arange(5)))
    for mask in (None, mh.Causal()):
        out = layer(x, mask=mask, bias=bias, positions=positions)
        torch.testing.assert_close(out[:1, 2:], layer(x[:1, 2:], mask=mask, bias=bias))
        torch.testing.assert_close(out[1:], layer(x[1:], mask=mask, bias=bias))
        out[:, 2:].sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in bias.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_is_counted_from_its_end_unless_positions_say_otherwise(kind: str) -> None:
    layer = mh.MultiHeadAttention(32, 4, dtype=torch.float64)
    bias = make(kind).double()
    x, context = (torch.randn(2, n, 32, dtype=torch.float64) for n in (3, 7))
    everyone = mh.Padding(lengths=torch.tensor([7, 7]))
    out = layer(x, context, bias=bias)
    torch.testing.assert_close(layer(x, context, bias=bias, mask=everyone), out)
    torch.testing.assert_close(layer(x, context, bias=bias, positions=4), out)
    assert (layer(x, context, bias=bias, positions=0) - out).abs().max() > 1e-6
    cache = mh.CrossCache()
    first = layer(x[:, :1], context, bias=bias, positions=4, cache=cache)
    rest = layer(x[:, 1:], bias=bias, positions=5, cache=cache)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), out)


@pytest.mark.parametrize("slope", [0.0, 1e-3, 1.0, 30.0, 1e6, -2.0])
@pytest.mark.parametrize("scale", [None, 1.0, -0.5, 0.0, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_slope_and_scale_are_served(
    dtype: torch.dtype, scale: float | None, slope: float
) -> None:
    q, k, v = (t.to(dtype).detach() for t in drawn(9, 9))
    bias = mh.ALiBi(4, slopes=(slope,) * 4)
    outs = [
        mh.attention(*inputs, mh.Causal(), bias=bias, scale=scale, backend=backend)
        for backend, inputs in (
            ("fused", (q, k, v)),
            ("reference", [t.double() for t in (q, k, v)]),
        )
    ]
    error = (outs[0].double() - outs[1]).abs().max()
    assert error <= 2 * TOLERANCE[dtype] * v.double().abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["alibi", "t5", "shaw"])
@pytest.mark.parametrize("length", [7, 1025])
def test_every_dtype_is_as_near_as_it_can_be(length: int, kind: str, dtype: torch.dtype) -> None:
    bias = make(kind).requires_grad_(False)
    q, k, v = (t.to(dtype).detach() for t in drawn(length, length))
    exact = mh.attention(q.double(), k.double(), v.double(), mh.Causal(), bias=bias)
    for backend in ("fused", "reference"):
        out = mh.attention(q, k, v, mh.Causal(), bias=bias, backend=backend)
        assert out.dtype == dtype
        error = (out.double() - exact).abs().max() / v.double().abs().max()
        assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_heads", [4, 6])
def test_far_from_the_start_alibi_is_as_exact_when_folded(
    num_heads: int, dtype: torch.dtype
) -> None:
    """Large positions must cancel: 70,000 tokens into a text, a bias is still a small number."""
    q, k, v = (torch.randn(1, num_heads, 300, 64).to(dtype).requires_grad_() for _ in range(3))
    bias, start = mh.ALiBi(num_heads), 70_000
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    upstream = torch.randn_like(v)
    for places in (start, start + torch.arange(300)):
        exact = mh.attention(*wide, mh.Causal(), bias=bias, q_pos=0, kv_pos=0, backend="reference")
        out = mh.attention(
            q, k, v, mh.Causal(), bias=bias, q_pos=places, kv_pos=places, backend="fused"
        )
        share = 1 if dtype == torch.float32 else 2
        tolerance = share * TOLERANCE[dtype]
        assert (out.double() - exact).abs().max() <= tolerance * v.double().abs().max()
        grads = torch.autograd.grad(out, (q, k, v), upstream)
        right = torch.autograd.grad(exact, wide, upstream.double())
        for ours, expected in zip(grads, right, strict=True):
            size = max(1.0, float(expected.abs().max()))
            assert (ours.double() - expected).abs().max() <= 2 * tolerance * size


def test_log_sum_exp_knows_the_whole_bias_when_folded() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (t.detach().to(dtype) for t in drawn(9, 9))
        bias = mh.ALiBi(4)
        found = mh.attention_with_lse(q, k, v, mh.Causal(), bias=bias, backend="fused")[1]
        right = mh.attention_with_lse(
            q.double(), k.double(), v.double(), mh.Causal(), bias=bias, backend="reference"
        )[1]
        atol = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(found.double(), right, atol=atol, rtol=0)


def test_training_with_alibi_holds_nothing_of_the_size_of_the_pairs() -> None:
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved = max(saved, tensor.numel())
        return tensor

    length = 512
    q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        mh.attention(q, k, v, mh.Causal(), bias=mh.ALiBi(2), backend="fused").sum().backward()
    assert saved <= 2 * length * 24
    told = mh.explain(q, k, v, mh.Causal(), bias=mh.ALiBi(2), verbose=False)
    assert told.chosen == "fused"
    (row,) = (row for row in told.rows if row.chosen)
    assert row.extra_bytes is not None and row.extra_bytes <= 3 * 4 * 2 * length * 24
    assert told.notes == (
        "the bias ALiBi(2) is folded into 8 further features, so nothing is q_len x kv_len",
    )


def test_explain_tells_what_becomes_of_a_bias() -> None:
    q, k, v = (t.detach() for t in drawn(5, 5))
    t5 = mh.T5Bias(4)
    told = mh.explain(q, k, v, bias=t5, verbose=False)
    assert told.chosen == "reference"
    assert told.cure == "for fused: detach the bias"
    with torch.no_grad():
        told = mh.explain(q, k, v, bias=t5, verbose=False)
        both_ways = mh.explain(q, k, v, bias=mh.ALiBi(4), verbose=False)
    assert told.chosen == both_ways.chosen == "fused"
    assert "written out" in told.notes[0]
    assert "written out" in both_ways.notes[0]
    meta = [t.to("meta") for t in (q, k, v)]
    assert mh.explain(*meta, mh.Causal(), bias=mh.ALiBi(4), verbose=False).chosen == "fused"
    late = mh.explain(*(t.detach() for t in drawn(9, 5)), bias=mh.ALiBi(4), verbose=False)
    assert late.notes[0].startswith("q_len=9 exceeds kv_len=5: the first 4 queries stand before")


@pytest.mark.parametrize("kind", KINDS)
def test_attention_with_a_bias_compiles_whole(kind: str) -> None:
    torch.compiler.reset()
    bias = make(kind)
    q, k, v = drawn(5, 9, dtype=torch.float32)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mh.attention(q, k, v, mh.Causal(), bias=bias)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), run(q, k, v), atol=1e-5, rtol=1e-5)


def test_autocast_leaves_a_bias_in_full_precision() -> None:
    q, k, v = (t.detach().float() for t in drawn(9, 9))
    for kind in KINDS:
        bias = make(kind).requires_grad_(False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outs = [
                mh.attention(q, k, v, mh.Causal(), bias=bias, backend=backend)
                for backend in ("fused", "reference")
            ]
        assert outs[0].dtype == outs[1].dtype == torch.bfloat16
        torch.testing.assert_close(*outs, atol=0.03, rtol=0)


def test_fixed_slopes_are_numbers_that_no_cast_can_spoil() -> None:
    bias, q = mh.ALiBi(6), torch.zeros(1, 6, 1, 8)
    assert bias.state_dict() == {}
    expected = bias(q, q, 3000, 0, scale=1.0)
    for other in (mh.ALiBi(6).to(torch.bfloat16), mh.ALiBi(6).to("meta")):
        assert torch.equal(other(q, q, 3000, 0, scale=1.0), expected)


def test_learned_slopes_begin_as_the_papers_and_are_trained() -> None:
    bias = mh.ALiBi(6, learned=True)
    torch.testing.assert_close(bias.slopes.detach(), torch.tensor(alibi_slopes(6)))
    q, k, v = (torch.randn(1, 6, 5, 8) for _ in range(3))
    mh.attention(q, k, v, mh.Causal(), bias=bias).square().sum().backward()
    assert bias.slopes.grad.abs().min() > 0


def test_relative_values_are_the_mean_vector_of_the_distances() -> None:
    values = mh.ShawValues(3, max_distance=2).double()
    weights = torch.rand(2, 4, 3, 5, dtype=torch.float64).softmax(-1).requires_grad_()
    out = values(weights)
    expected = torch.zeros(2, 4, 3, 3, dtype=torch.float64)
    for i in range(3):
        for j in range(5):
            row = max(-2, min(2, j - (i + 2))) + 2
            expected[:, :, i] += weights[:, :, i, j, None] * values.table[row]
    torch.testing.assert_close(out, expected)
    assert torch.autograd.gradcheck(lambda w: values(w, torch.tensor([1, 4, 9]), 2), weights)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mh.ALiBi(0), r"^num_heads must be an int of at least 1; got num_heads=0\. "),
        (lambda: mh.ALiBi(2, slopes=(1.0,)), r"^slopes must be 2 finite numbers, one a head; got "),
        (
            lambda: mh.ALiBi(1, slopes=(float("nan"),)),
            r"^slopes must be 1 finite numbers.* got .*nan",
        ),
        (lambda: mh.T5Bias(2, num_buckets=3), r"^num_buckets must be even and at least 4, and "),
        (lambda: mh.T5Bias(2, max_distance=8), r"max_distance=8\. T5 has 32 and 128\.$"),
        (lambda: mh.T5Bias(2, reach="future"), r"^reach must be 'both' or 'past'; got reach="),
        (lambda: mh.TransformerXLBias(2, 4, 5), r"^d_model must be even, .* got d_model=5\. "),
        (
            lambda: mh.ShawBias(2, 4, max_distance=0),
            r"^max_distance must be an int of at least 1; ",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


class Broken(mh.Bias):
    def forward(
        self, q: Tensor, k: Tensor, q_pos: object, kv_pos: object, *, scale: float
    ) -> Tensor:
        return torch.zeros(2, 3)


def test_a_bias_that_does_not_fit_the_call_is_refused() -> None:
    q, k, v = (t.detach() for t in drawn(5, 5))
    with pytest.raises(
        ShapeError, match=r"^bias must serve the 4 heads of q; got bias.num_heads=8"
    ):
        mh.attention(q, k, v, bias=mh.ALiBi(8))
    with pytest.raises(DeviceError, match=r"^bias must be on the device of q, k and v, cpu; got "):
        mh.attention(q, k, v, bias=mh.T5Bias(4, device="meta"))
    with pytest.raises(ShapeError, match=r"^bias must be \(q_len, kv_len\) or .*\(1, 1, 2, 3\)\. "):
        mh.attention(q, k, v, bias=Broken(4))
    with pytest.raises(DTypeError, match=r"^bias must be a floating-point tensor, or an object "):
        mh.attention(q, k, v, bias="alibi")


def test_distances_are_counted_in_integers() -> None:
    q, k = torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16), torch.zeros(1, 1, 3, 4)
    assert distances(257, 255, q, k).tolist() == [[[[2, 1, 0], [3, 2, 1]]]]


@pytest.mark.parametrize("scale", [-0.5, 0.0])
@pytest.mark.parametrize("kind", ["transformer xl", "shaw"])
def test_a_bias_that_reads_queries_reads_them_whatever_the_scale(kind: str, scale: float) -> None:
    q, k = torch.randn(2, 4, 5, 8).double(), torch.randn(2, 4, 5, 8).double()
    with torch.no_grad():
        fused, right = (
            mh.attention(q, k, k, mh.Causal(), bias=make(kind).double(), scale=scale, backend=b)
            for b in ("fused", "reference")
        )
    torch.testing.assert_close(fused, right, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_no_queries_or_no_keys_are_no_mistake(sizes: tuple[int, int], kind: str) -> None:
    q, k = (torch.randn(2, 4, length, 8) for length in sizes)
    assert mh.attention(q, k, k, mh.Causal(), bias=make(kind)).eq(0).all()


def test_far_below_zero_there_is_still_no_token_in_half_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "_is_slow", lambda call: False)  # as on processors with 16 bits
    q = torch.randn(2, 4, 5, 16).half()
    out = []
    for nowhere in (-1, -(10**9)):
        places = torch.where(RAGGED < 0, nowhere, RAGGED)
        options = {"q_pos": places, "kv_pos": places, "bias": mh.ALiBi(4)}
        out.append(mh.attention(q, q, q, mh.Causal(), **options))
    assert torch.equal(*out)
