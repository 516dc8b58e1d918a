"""Each law of backends is broken by a backend that gets one thing wrong."""

import dataclasses
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from manyheads.functional import BACKENDS, Backend, Call, Refusal, Result
from manyheads.functional.reference import REFERENCE
from manyheads.laws import SUITES, LawBroken, check_backend
from manyheads.laws.backend import Trial, leaves_its_arguments_alone, refuses_by_name
from manyheads.laws.calls import BackendCase
from manyheads.laws.law import hold


def broken(change: Callable[[Call], Result]) -> Backend:
    return dataclasses.replace(REFERENCE, name="broken", run=change)


def drops_the_mask_at_odd_lengths(call: Call) -> Result:
    odd = call.q.shape[2] % 2 and call.k.shape[2] > 64
    return REFERENCE.run(call._replace(mask=None) if odd else call)


def has_no_gradient_for_k(call: Call) -> Result:
    return REFERENCE.run(call._replace(k=call.k.detach()))


def takes_heads_in_turn(call: Call) -> Result:
    times = call.q.shape[1] // call.k.shape[1]
    k, v = call.k.repeat(1, times, 1, 1), call.v.repeat(1, times, 1, 1)
    return REFERENCE.run(call._replace(k=k, v=v))


def gives_the_mean_to_empty_rows(call: Call) -> Result:
    result = REFERENCE.run(call)
    if call.mask is None or call.need != "output" or not call.k.shape[2]:
        return result
    empty = ~call.mask.dense(call.q.shape[1]).any(dim=-1, keepdim=True)
    mean = call.v.mean(dim=2, keepdim=True)
    mean = mean.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
    return Result(torch.where(empty, mean, result.output))


def forgets_the_scale(call: Call) -> Result:
    return REFERENCE.run(call._replace(scale=call.q.shape[3] ** -0.5))


def adds_the_bias_below_the_cap(call: Call) -> Result:
    if call.softcap is None or call.bias is None:
        return REFERENCE.run(call)
    scores = call.q @ call.k.mT * call.scale + call.bias
    capped = call.softcap * torch.tanh(scores / call.softcap)
    none = torch.zeros_like(call.q), torch.zeros_like(call.k)
    return REFERENCE.run(call._replace(q=none[0], k=none[1], bias=capped, softcap=None))


def answers_in_fp32(call: Call) -> Result:
    output, weights, lse = REFERENCE.run(call)
    return Result(output.float() if output.dtype == torch.bfloat16 else output, weights, lse)


def says_zero_for_the_lse_of_empty_rows(call: Call) -> Result:
    output, weights, lse = REFERENCE.run(call)
    return Result(output, weights, None if lse is None else lse.masked_fill(lse == -torch.inf, 0))


def cannot_take_nothing(call: Call) -> Result:
    assert call.k.shape[2], "no keys"
    return REFERENCE.run(call)


@pytest.mark.parametrize(
    ("run", "law"),
    [
        (drops_the_mask_at_odd_lengths, "odd_lengths"),
        (has_no_gradient_for_k, "odd_lengths"),
        (gives_the_mean_to_empty_rows, "odd_lengths"),
        (takes_heads_in_turn, "grouped_heads"),
        (answers_in_fp32, "every_dtype"),
        (forgets_the_scale, "every_score_change"),
        (adds_the_bias_below_the_cap, "every_score_change"),
        (cannot_take_nothing, "nothing_at_all"),
        (says_zero_for_the_lse_of_empty_rows, "weights_and_lse"),
    ],
)
def test_a_backend_that_is_wrong_is_found_out(run: Callable[[Call], Result], law: str) -> None:
    chosen = next(one for one in SUITES["backend"] if one.__name__ == law)
    with pytest.raises(LawBroken) as found:
        hold((chosen,), Trial(broken(run), BackendCase(), thorough=False))
    assert found.value.law.startswith(law + ":")


def test_a_backend_that_writes_into_its_arguments_is_found_out() -> None:
    def writes(call: Call) -> Result:
        result = REFERENCE.run(call)
        call.q.detach().zero_()
        return result

    with pytest.raises(LawBroken, match="q was written to"):
        hold((leaves_its_arguments_alone,), Trial(broken(writes), BackendCase(), thorough=False))


def test_a_refusal_without_a_cure_is_found_out() -> None:
    def refusals(call: Call) -> Iterator[Refusal]:
        if call.softcap is not None:
            yield Refusal("no softcap here", "")

    rude = dataclasses.replace(REFERENCE, name="rude", refusals=refusals)
    with pytest.raises(LawBroken, match="without why or cure"):
        hold((refuses_by_name,), Trial(rude, BackendCase(), thorough=False))


def test_a_backend_that_answers_what_it_refuses_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusals(call: Call) -> Iterator[Refusal]:
        yield Refusal("never", "ask another")

    never = dataclasses.replace(REFERENCE, name="never", refusals=refusals)
    monkeypatch.setitem(BACKENDS, "never", never)
    check_backend("never")  # it refuses all, and by name
    seam = sys.modules["manyheads.functional.seam"]
    monkeypatch.setattr(seam, "choose", lambda call, backend: REFERENCE)
    with pytest.raises(LawBroken, match="refuses_by_name"):
        check_backend("never")


def test_the_message_names_the_call_and_the_error() -> None:
    with pytest.raises(LawBroken) as found:
        check_backend(broken(has_no_gradient_for_k), seed=2)
    message = str(found.value)
    assert "q_len=1, kv_len=2, mask=none, dtype=torch.float64, seed=2" in message
    assert "gradient of k is off by" in message
