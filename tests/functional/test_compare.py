"""What `compare` says of two functions whose difference is known."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import ManyheadsError, OptionError, ShapeError
from manyheads.functional import Comparison, Cost
from manyheads.functional.compare import weights_of
from manyheads.functional.comparison import wins_from
from manyheads.functional.cost import peak_bytes

Q, K, V = torch.randn(3, 2, 2, 12, 8, generator=torch.Generator().manual_seed(0)).unbind(0)


def half(q: Tensor, k: Tensor, v: Tensor, mask: mh.Mask | None = None) -> Tensor:
    return mh.attention(q, k, v, mask) / 2


def first_key(q: Tensor, k: Tensor, v: Tensor, mask: mh.Mask | None = None) -> Tensor:
    return v[:, :, :1].expand(-1, -1, q.shape[2], -1)


def second_key(q: Tensor, k: Tensor, v: Tensor, mask: mh.Mask | None = None) -> Tensor:
    return v[:, :, 1:2].expand(-1, -1, q.shape[2], -1)


def test_a_function_beside_itself_is_off_by_nothing() -> None:
    found = mh.compare(mh.attention, mh.attention, Q, K, V, mh.Causal(), lengths=())
    assert (found.output_error, found.largest_error, found.weight_error) == (0.0, 0.0, 0.0)
    assert (found.length, found.costs, found.wins_from) == ((12, 12), (), None)


def test_errors_are_shares_of_the_exact_output_and_of_its_weight() -> None:
    found = mh.compare(mh.attention, half, Q, K, V, lengths=())
    assert found.output_error == pytest.approx(0.5)
    assert found.weight_error == pytest.approx(0.25)  # half of every weight, on no other key
    largest = mh.attention(Q, K, V).abs().max().item() / 2
    assert found.largest_error == pytest.approx(largest)
    assert mh.compare(first_key, second_key, Q, K, V, lengths=()).weight_error == 1.0


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_the_weights_of_exact_attention_are_found_without_being_asked_for(kv_heads: int) -> None:
    k, v = K[:, :kv_heads], V[:, :kv_heads]
    mask = mh.Causal() & mh.Padding(lengths=torch.tensor([12, 7]))
    output, weights = mh.attention_with_weights(Q, k, v, mask)
    found = weights_of(mh.attention, output, Q, k, v, mask)
    torch.testing.assert_close(found, weights)


def test_a_function_that_is_not_linear_in_the_values_has_no_weights() -> None:
    squared = lambda q, k, v, mask=None: mh.attention(q, k, v, mask).square()  # noqa: E731
    found = mh.compare(mh.attention, squared, Q, K, V, lengths=())
    assert found.weight_error is None
    assert "weights off by  -" in str(found)


def test_random_methods_are_drawn_alike_for_output_and_weights() -> None:
    state = torch.get_rng_state()
    near = partial(mh.lsh_attention, bucket_size=4)
    found = mh.compare(mh.attention, near, Q, Q, V, lengths=())
    assert found.weight_error is not None
    assert torch.equal(torch.get_rng_state(), state)


def test_time_and_memory_are_taken_at_each_length_and_without_tensors_of_a_mask() -> None:
    mask = mh.Causal() & mh.Padding(lengths=torch.tensor([12, 5]))
    found = mh.compare(mh.attention, mh.linear_attention, Q, K, V, mask, lengths=(16, 64))
    assert [cost.length for cost in found.costs] == [16, 64]
    for cost in found.costs:
        assert min(cost.exact_seconds, cost.approximate_seconds) > 0
        assert cost.exact_bytes >= 4 * 2 * 2 * cost.length * 8
    text = str(found)
    assert text.startswith("linear_attention beside attention, 12 queries and 12 keys")
    assert "length" in text
    assert found.verdict in text
    assert found.chart().count("\n") == 3


def test_the_memory_of_a_call_is_what_it_held_at_once() -> None:
    def call() -> Tensor:
        for _ in range(3):
            x = torch.zeros(1000)
            del x
        return torch.zeros(500)

    assert 4000 <= peak_bytes(call, torch.device("cpu")) < 6000


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], None),
        ([0.5, 0.9], None),
        ([2.0, 0.5], None),
        ([2.0, 3.0], 0),
        ([0.5, 2.0], 200),  # as far from 1 on either side: between 100 and 400 in proportion
        ([2.0, 0.5, 2.0], 800),
    ],
)
def test_it_wins_from_where_the_times_cross_for_the_last_time(
    times: list[float], expected: int | None
) -> None:
    costs = [Cost(100 * 4**i, ratio, 1.0, 0, 0) for i, ratio in enumerate(times)]
    assert wins_from(costs) == expected


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((), "no length was timed"),
        ((0.5,), "near is not faster up to 100 tokens"),
        ((2.0,), "near is faster at every length tried"),
        ((0.5, 2.0), "near is faster from about 200 tokens on"),
    ],
)
def test_the_verdict_is_a_sentence(ratios: tuple[float, ...], verdict: str) -> None:
    costs = tuple(Cost(100 * 4**i, ratio, 1.0, 0, 0) for i, ratio in enumerate(ratios))
    found = Comparison("exact", "near", (1, 1), 0.1, 0.1, None, costs, wins_from(costs))
    assert found.verdict == verdict
    assert (found.chart() == "") == (not costs)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: mh.compare(mh.attention, mh.attention, Q, K, V, lengths=(8, 8)),
            OptionError,
            r"lengths must grow; got lengths=\(8, 8\)\. Write",
        ),
        (
            lambda: mh.compare(mh.attention, mh.attention, Q, K, V, lengths=(0,)),
            OptionError,
            "lengths must be an int of at least 1; got lengths=0",
        ),
        (
            lambda: mh.compare(mh.attention, lambda q, k, v, mask: q[..., :3], Q, K, V, lengths=()),
            ShapeError,
            r"one shape; got exact=\(2, 2, 12, 8\), approximate=\(2, 2, 12, 3\)\. Give",
        ),
    ],
)
def test_mistakes_are_named_with_their_cure(
    call: Callable[[], object], kind: type[ManyheadsError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_loading_the_profiler_takes_nothing_from_the_time_for_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    def slow_at_first(call: Callable[[], object], device: torch.device) -> int:
        clock[0] += 2.0 if clock[0] else 60.0
        return 0

    module = import_module("manyheads.functional.compare")
    monkeypatch.setattr(module, "peak_bytes", slow_at_first)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    costs = mh.compare(mh.attention, half, Q, K, V).costs
    assert [cost.length for cost in costs] == [64, 128, 256]  # begun after 0, 4 and 8 seconds
