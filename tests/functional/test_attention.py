"""What `attention` computes: numbers by hand, any drawn call, precision, and what may not leak."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import manyheads as mh
from manyheads.functional import fused
from manyheads.laws.calls import BIASES, BackendCase, draw, masks
from manyheads.laws.law import TOLERANCE

LN2, LN3 = 0.6931471805599453, 1.0986122886681098
NAN, INF = float("nan"), float("inf")
BACKENDS = pytest.mark.parametrize("backend", ["fused", "reference"])


def by_hand() -> tuple[Tensor, Tensor, Tensor]:
    """Scores 0, ln 2, ln 3 for the one query, so that weights are sixths: 1, 2, 3."""
    q = torch.tensor([1.0], dtype=torch.float64).view(1, 1, 1, 1)
    k = torch.tensor([0.0, LN2, LN3], dtype=torch.float64).view(1, 1, 3, 1)
    v = torch.tensor([6.0, 12.0, 30.0], dtype=torch.float64).view(1, 1, 3, 1)
    return q, k, v


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({}, (6 + 2 * 12 + 3 * 30) / 6),
        ({"mask": torch.tensor([[True, True, False]])}, (6 + 2 * 12) / 3),
        ({"scale": 0.0}, 16.0),
        ({"scale": 2.0}, (6 + 4 * 12 + 9 * 30) / 14),
        ({"bias": torch.tensor([[LN3, 0.0, -INF]], dtype=torch.float64)}, (3 * 6 + 2 * 12) / 5),
        ({"sink_logits": torch.tensor([6.0]).log().double()}, (6 + 2 * 12 + 3 * 30) / 12),
        ({"softcap": 1e9}, 20.0),
        ({"mask": torch.zeros(1, 3).bool()}, 0.0),
        ({"mask": mh.Causal(), "q_pos": 1, "kv_pos": torch.tensor([1, 5, 0])}, 96 / 4),
    ],
)
def test_the_output_is_the_one_worked_by_hand(options: dict[str, object], output: float) -> None:
    for backend in ("auto", "reference"):
        found = mh.attention(*by_hand(), **options, backend=backend)  # type: ignore[arg-type]
        assert found.item() == pytest.approx(output, rel=1e-6)


def test_stages_of_the_scores_are_those_worked_by_hand() -> None:
    q, k, v = by_hand()
    options = {"bias": torch.tensor([[1.0, 1.0, 0.0]]), "softcap": 1.0, "scale": 2.0}
    mask = torch.tensor([[True, False, True]])
    stages = {
        stage: mh.attention_scores(q, k, v, mask, **options, stage=stage).flatten().tolist()  # type: ignore[arg-type]
        for stage in ("raw", "capped", "masked", "softmax")
    }
    assert stages["raw"] == pytest.approx([0.0, 2 * LN2, 2 * LN3])
    assert stages["capped"] == pytest.approx([0.0, 15 / 17, 40 / 41])  # tanh(ln x^2)
    assert stages["masked"] == pytest.approx([1.0, -INF, 40 / 41])
    assert sum(stages["softmax"]) == pytest.approx(1.0) and stages["softmax"][1] == 0.0


CASES = st.builds(
    BackendCase,
    q_len=st.integers(0, 9),
    kv_len=st.integers(0, 9),
    batch=st.integers(1, 3),
    num_heads=st.sampled_from([2, 4]),
    num_kv_heads=st.sampled_from([1, 2]),
    head_dim=st.integers(1, 9),
    value_dim=st.integers(1, 9),
    mask=st.sampled_from(sorted(masks(BackendCase()))),
    bias=st.none() | st.sampled_from(sorted(BIASES)),
    hidden=st.booleans(),
    void=st.none() | st.sampled_from([NAN, INF]),
    layout=st.sampled_from(["plain", "strided", "expanded"]),
    grad=st.just(False),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 99),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(CASES)
def test_auto_gives_what_the_reference_gives(case: BackendCase) -> None:
    inputs = draw(case)
    wide = {name: tensor.double() for name, tensor in inputs.tensors.items()}
    found = mh.attention(**inputs.tensors, **inputs.arguments)
    right = mh.attention(**wide, **inputs.arguments, backend="reference")
    assert found.dtype == case.dtype
    size = max(1.0, float(right.abs().max()) if right.numel() else 0.0)
    size = max(size, float(wide["v"].nan_to_num(0, 0, 0).abs().max()) if case.kv_len else 0.0)
    torch.testing.assert_close(
        found.double(), right, rtol=0, atol=TOLERANCE[case.dtype] * size, equal_nan=False
    )


@BACKENDS
def test_no_nan_of_an_absent_token_reaches_output_or_gradient(backend: str) -> None:
    q, k, v = (torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    positions = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, -1]])
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 1]]).bool()
    absent = (positions < 0)[:, None, :, None]
    unseen = absent | ~keep[:, None, :, None]
    q, k, v = q.masked_fill(absent, NAN), k.masked_fill(unseen, INF), v.masked_fill(unseen, NAN)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mask = mh.Causal() & mh.Padding(keep)
    out = mh.attention(*leaves, mask, q_pos=positions, kv_pos=positions, backend=backend)
    gradients = torch.autograd.grad(out.square().sum(), leaves)
    assert (out[absent.expand_as(out)] == 0).all()
    assert all(x.isfinite().all() for x in (out, *gradients))
    assert (gradients[0][absent.expand_as(q)] == 0).all()
    assert all((g[unseen.expand_as(g)] == 0).all() for g in gradients[1:])


@BACKENDS
def test_a_nan_of_a_real_token_may_be_seen(backend: str) -> None:
    v = torch.ones(1, 1, 3, 2)
    v[:, :, 1] = NAN
    out = mh.attention(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2), v, backend=backend)
    assert out.isnan().all()


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_inputs_are_cast_first_and_the_output_too(
    dtype: torch.dtype, backend: str
) -> None:
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    with torch.autocast("cpu", dtype=dtype):
        found = mh.attention(q, k.to(dtype), v, mh.Causal(), backend=backend)
        exact = mh.attention(q.double(), k.double(), v.double(), backend=backend)
    assert found.dtype == dtype and exact.dtype == torch.float64
    cast = [x.to(dtype) for x in (q, k, v)]
    assert torch.equal(found, mh.attention(*cast, mh.Causal(), backend=backend))


def test_a_bias_in_fp32_stays_in_fp32_under_autocast() -> None:
    q = torch.randn(1, 2, 5, 8)
    bias = torch.full((5, 5), 300.0) + torch.eye(5)  # bf16 would round 301 to 300
    with torch.autocast("cpu", dtype=torch.bfloat16):
        both = [mh.attention(q, q, q, bias=bias, backend=b) for b in ("fused", "reference")]
    torch.testing.assert_close(*both, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("bias_dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_bias_of_any_dtype_will_do(dtype: torch.dtype, bias_dtype: torch.dtype) -> None:
    q = torch.randn(1, 2, 5, 8).to(dtype)
    bias = torch.arange(25.0).view(5, 5).to(bias_dtype)
    fused, right = (mh.attention(q, q, q, bias=bias, backend=b) for b in ("fused", "reference"))
    assert fused.dtype == right.dtype == dtype
    tolerance = 3 * TOLERANCE[dtype]
    torch.testing.assert_close(fused, right, atol=tolerance, rtol=tolerance)


@BACKENDS
def test_large_scores_of_half_precision_stay_finite(backend: str) -> None:
    q = torch.full((1, 1, 2, 64), 60.0, dtype=torch.float16)  # q.k = 230400, beyond fp16
    v = torch.randn(1, 1, 2, 64).half()
    out = mh.attention(q, q, v, backend=backend)
    torch.testing.assert_close(out, v.mean(dim=2, keepdim=True).expand_as(v), atol=2e-3, rtol=0)


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_tensors_without_numbers_have_shapes(backend: str) -> None:
    q, k = torch.empty(2, 4, 3, 8, device="meta"), torch.empty(2, 2, 5, 8, device="meta")
    mask = mh.Causal() & mh.Padding(torch.ones(2, 5).bool())
    out = mh.attention(q, k, k, mask, backend=backend)
    assert out.is_meta and out.shape == (2, 4, 3, 8)


@pytest.mark.parametrize("bias_dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_rounds_no_bias_to_its_own_dtype(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bias_dtype: torch.dtype
) -> None:
    monkeypatch.setattr(fused, "_is_slow", lambda call: False)  # as on processors with 16 bits
    q = torch.randn(1, 2, 5, 8).to(dtype)
    low = -300.0 if bias_dtype == torch.float16 else -70000.0  # beyond fp16; 300.5 is beyond bf16
    bias = (low + torch.eye(5) / 2).to(bias_dtype)
    out, right = (mh.attention(q, q, q, bias=bias, backend=b) for b in ("fused", "reference"))
    torch.testing.assert_close(out, right, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("hidden", [NAN, INF])
@pytest.mark.parametrize("mask", [mh.Causal(), mh.Causal() & mh.Window(3)], ids=repr)
def test_what_a_bias_says_of_hidden_pairs_is_never_read(mask: mh.Mask, hidden: float) -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8).double()
    bias = torch.randn(5, 5).double()
    spoiled = bias.masked_fill(~mask.dense(5)[0, 0], hidden)  # as the log of a negative distance is
    right = mh.attention(q, k, v, mask, bias=bias, backend="reference")
    for backend in ("fused", "reference"):
        out = mh.attention(q, k, v, mask, bias=spoiled, backend=backend)
        torch.testing.assert_close(out, right, rtol=0, atol=1e-10)
