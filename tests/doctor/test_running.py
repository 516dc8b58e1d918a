"""A model that is run keeps nothing of it."""

import torch
from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.running import run

X = torch.ones(2, 3)


class Counts(nn.Module):
    """Writes into its buffers, in the two ways in which people do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.data.copy_(x.mean(dim=0))
        return x + self.calls


def answer(model: nn.Module) -> Tensor:
    return run(model, Call.of(model, (X,), {}))


def test_buffers_are_as_before_after_every_call() -> None:
    model = Counts()
    answers = [answer(model) for _ in range(3)]
    assert all(torch.equal(each, X + 1) for each in answers)
    assert torch.equal(model.calls, torch.zeros(1))
    assert torch.equal(model.mean, torch.zeros(3))


def test_a_buffer_that_was_changed_in_between_stays_so() -> None:
    model = Counts()
    answer(model)
    model.calls += 5
    assert torch.equal(answer(model), X + 6)
    assert torch.equal(model.calls, torch.full((1,), 5.0))


def test_random_numbers_are_seeded_and_those_of_others_go_on() -> None:
    model = nn.Dropout(0.5).train()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again = answer(model), answer(model)
    other = run(model, Call.of(model, (X,), {}), seed=3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
