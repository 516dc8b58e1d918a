"""The backend that works by pieces: exact, with gradients for all, in linear memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import BackendError
from manyheads.functional import Auto, cut
from manyheads.functional.cost import peak_bytes
from manyheads.laws import check_backend
from manyheads.positions import ALiBi, ShawBias, T5Bias, TransformerXLBias


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "BLOCK", 5)
    monkeypatch.setattr(cut, "PAIRS", 40)


@pytest.mark.usefixtures("_small")
def test_small_pieces_keep_every_law() -> None:
    check_backend("chunked")


@pytest.mark.long
@pytest.mark.parametrize(("block", "pairs"), [(1, 1), (2, 12), (5, 1000)])
def test_pieces_of_any_size_keep_every_law(
    block: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "BLOCK", block)
    monkeypatch.setattr(cut, "PAIRS", pairs)
    check_backend("chunked")


class Nearness(mh.Bias):
    """A user's own: reads queries, one number a sequence and head, and a weight."""

    reads_content = True

    def __init__(self, num_heads: int) -> None:
        super().__init__(num_heads)
        self.weight = torch.nn.Parameter(torch.randn(num_heads, 1, 1, dtype=torch.float64))

    def forward(self, q, k, q_pos, kv_pos, *, scale):  # type: ignore[no-untyped-def]
        apart = mh.positions.distances(q_pos, kv_pos, q, k).abs().to(q.dtype)
        return self.weight * torch.tanh(q.mean(dim=-1, keepdim=True)) - 0.1 * apart


RULES: dict[str, Callable[[], mh.Bias]] = {
    "alibi": lambda: ALiBi(4, learned=True),
    "t5": lambda: T5Bias(4, num_buckets=8, max_distance=20),
    "shaw": lambda: ShawBias(4, 8, max_distance=6),
    "transformer xl": lambda: TransformerXLBias(4, 8, 16),
    "a user's": lambda: Nearness(4),
}
RAGGED = torch.arange(23) + torch.tensor([[0], [-6]])
CALLS = {
    "plain": (None, {}),
    "causal": (mh.Causal(), {}),
    "runs": (mh.Causal() & (mh.Window(4) | mh.Global(0)), {}),
    "ragged": (mh.Causal(), {"q_pos": RAGGED[:, 4:], "kv_pos": RAGGED}),
    "heads": (mh.PerHead((mh.Causal(), mh.Window(2), mh.Window(9), ~mh.Causal())), {}),
    "softcap": (mh.Causal(), {"softcap": 1.5}),
}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def inputs(q_len: int = 19, kv_len: int = 23) -> tuple[Tensor, Tensor, Tensor]:
    return drawn(2, 4, q_len, 8), drawn(2, 2, kv_len, 8), drawn(2, 2, kv_len, 5)


def learned(output: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return list(torch.autograd.grad((output * weight.double()).sum(), leaves))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", CALLS)
def test_a_bias_that_reads_positions_learns_what_it_does_whole(rule: str, kind: str) -> None:
    (q, k, v), bias = inputs(), RULES[rule]().double()
    mask, options = CALLS[kind]
    found, right = (
        mh.attention(q, k, v, mask, bias=bias, backend=name, **options)
        for name in ("chunked", "reference")
    )
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    leaves = [q, k, v, *bias.parameters()]
    for ours, theirs in zip(learned(found, leaves), learned(right, leaves), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("_small")
def test_parameters_that_were_handed_over_learn_too() -> None:
    (q, k, v), bias = inputs(), T5Bias(4, num_buckets=8, max_distance=20).double()
    table = drawn(8, 4)

    class Attends(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = bias

        def forward(self, backend: str) -> Tensor:
            return mh.attention(q, k, v, bias=self.bias, backend=backend)

    found, right = (
        torch.func.functional_call(Attends(), {"bias.table": table}, (name,))
        for name in ("chunked", "reference")
    )
    torch.testing.assert_close(learned(found, [table]), learned(right, [table]))


def dropped_weights(q: Tensor, k: Tensor, seed: int, **options: object) -> Tensor:
    """The weights after dropout: what the values' identity becomes."""
    torch.manual_seed(seed)
    eye = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    return mh.attention(q, k, eye, dropout=0.3, backend="chunked", **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("mask", [None, mh.Causal() & mh.Window(7)], ids=repr)
def test_with_dropout_the_gradient_is_that_of_the_weights_that_were_kept(mask: mh.Mask) -> None:
    q, k, v = inputs()
    bias, sinks = drawn(1, 4, 19, 23), drawn(4)
    options = {"bias": bias, "sink_logits": sinks, "softcap": 2.0}
    kept = dropped_weights(q, k, 5, mask=mask, **options).detach() != 0
    torch.manual_seed(5)
    found = mh.attention(q, k, v, mask, dropout=0.3, backend="chunked", **options)
    _, weights = mh.attention_with_weights(q, k, v, mask, **options)
    share = 1 - round(0.3 * 65536) / 65536
    right = (weights * kept / share) @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    leaves = [q, k, v, bias, sinks]
    for ours, theirs in zip(learned(found, leaves), learned(right, leaves), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_dropout_drops_its_share_of_every_head_and_row_each_by_its_own_draw() -> None:
    q = k = torch.zeros(2, 4, 300, 8)
    kept = dropped_weights(q, k, 0) != 0
    assert kept.double().mean() == pytest.approx(0.7, abs=0.002)
    per_row = kept.double().mean(dim=-1)
    # 300 draws of a row: a standard deviation of 0.0265.
    assert per_row.std() == pytest.approx(0.0265, rel=0.1)
    rows = kept.flatten(0, 2)
    assert len(rows.unique(dim=0)) == len(rows)
    by_key = kept.flatten(0, 2).double().mean(dim=0)
    assert (by_key - 0.7).abs().max() < 5 * (0.3 * 0.7 / len(rows)) ** 0.5


def test_the_mean_over_draws_is_the_output_without_dropout() -> None:
    q, k, v = inputs(7, 9)
    bias = drawn(1, 4, 7, 9)
    right = mh.attention(q, k, v, mh.Causal(), bias=bias)
    draws = [
        mh.attention(q, k, v, mh.Causal(), bias=bias, dropout=0.2, backend="chunked").detach()
        for _ in range(1000)
    ]
    mean, error = torch.stack(draws).mean(dim=0), torch.stack(draws).std(dim=0) / 1000**0.5
    assert ((mean - right).abs() <= 5 * error + 1e-12).all()


def test_a_seed_makes_its_dropout_repeatable_and_each_call_draws_anew() -> None:
    q, k, v = inputs(40, 40)
    calls = []
    for seed in (3, 3, None):
        if seed is not None:
            torch.manual_seed(seed)
        calls.append(mh.attention(q, k, v, dropout=0.5, backend="chunked"))
    assert torch.equal(calls[0], calls[1]) and not torch.equal(calls[1], calls[2])


@pytest.mark.parametrize("dropout", [1e-9, 1 - 1e-9])
def test_shares_next_to_nothing_and_to_all_stay_numbers(dropout: float) -> None:
    q, k, v = inputs()
    out = mh.attention(q, k, v, dropout=dropout, backend="chunked")
    assert out.isfinite().all() and all(x.isfinite().all() for x in learned(out, [q, k, v]))


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.1},
        {"softcap": 30.0},
        {"bias": torch.zeros(1, 4, 1, 700, requires_grad=True)},
        {"bias": T5Bias(4)},
    ],
    ids=["dropout", "softcap", "bias", "t5"],
)
def test_auto_takes_it_where_the_fused_kernel_cannot_serve(options: dict[str, object]) -> None:
    q = torch.zeros(1, 4, 700, 8)
    table = mh.explain(q, q, q, mh.Causal(), **options, verbose=False)  # type: ignore[arg-type]
    assert table.chosen == "chunked"
    small = q[:, :, :9]
    changed = {n: x for n, x in options.items() if not isinstance(x, Tensor)}
    table = mh.explain(small, small, small, **changed, verbose=False)  # type: ignore[arg-type]
    assert table.chosen == ("fused" if not changed else "reference")
    assert "pieces gain nothing below" in str(table)


@pytest.mark.parametrize("kind", ["dropout", "softcap", "bias"])
def test_its_measured_memory_grows_with_the_length_not_its_square(kind: str) -> None:
    def peak(length: int) -> int:
        q, k, v = torch.randn(3, 1, 1, length, 8).requires_grad_().unbind()
        bias = torch.zeros(1, 1, 1, length, requires_grad=True)
        options = {"dropout": 0.1} if kind == "dropout" else {"softcap": 9.0}
        options = {"bias": bias} if kind == "bias" else options
        strict = Auto(never_quadratic=True)

        def step() -> None:
            mh.attention(q, k, v, backend=strict, **options).sum().backward()  # type: ignore[arg-type]

        step()
        return peak_bytes(step, torch.device("cpu"))

    small, large, matrix = peak(2048), peak(4096), 4 * 4096**2
    assert large < matrix / 4
    assert large < 2.5 * small


def test_compiled_and_mapped_calls_fall_to_the_reference() -> None:
    q = torch.randn(1, 1, 520, 4)
    compiled = torch.compile(
        lambda q: mh.attention(q, q, q, softcap=3.0), backend="eager", fullgraph=True
    )
    right = mh.attention(q, q, q, softcap=3.0)
    torch.testing.assert_close(compiled(q), right)
    mapped = torch.func.vmap(lambda q: mh.attention(q, q, q, softcap=3.0))
    torch.testing.assert_close(mapped(q[None])[0], right)
    with pytest.raises(BackendError, match=r"chunked.*torch\.func"):
        torch.func.vmap(lambda q: mh.attention(q, q, q, backend="chunked"))(q[None])


def test_second_derivatives_are_refused_rather_than_wrong() -> None:
    q, k, v = inputs()
    out = mh.attention(q, k, v, backend="chunked")
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(BackendError, match="a second derivative must be one of"):
        first.sum().backward()


def test_a_gradient_under_autocast_is_not_rounded() -> None:
    q, k, v = (x.detach().float().requires_grad_() for x in inputs(70, 70))
    bias = torch.zeros(70, 70, requires_grad=True)
    out = mh.attention(q, k, v, bias=bias, backend="chunked")
    right = learned(out, [q, bias])
    out = mh.attention(q, k, v, bias=bias, backend="chunked")
    with torch.autocast("cpu"):
        found = learned(out, [q, bias])
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


def test_a_million_tokens_without_values_have_an_answer_at_once() -> None:
    q = torch.empty(1, 2, 10**6, 8, device="meta", requires_grad=True)
    out = mh.attention(q, q, q, mh.Causal(), softcap=5.0, backend="chunked")
    assert out.shape == q.shape and out.is_meta
    assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape
