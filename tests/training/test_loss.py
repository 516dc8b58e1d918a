import pytest
import torch

from manyheads.training import WarmupCosine, token_loss


def logits_with_loss(losses: list[float]) -> torch.Tensor:
    """Two-way logits whose cross-entropy for id 1 is as given, (1, length, 2)."""
    # log(1 + exp(x)) = loss
    gaps = torch.tensor(losses, dtype=torch.float64).exp().sub(1).log()
    return torch.stack((gaps, torch.zeros_like(gaps)), -1)[None]


def test_every_real_token_weighs_the_same_however_the_batch_is_cut() -> None:
    # TRAIN-01. A: 3 tokens with the loss sum 6, B: 1 token with 5, C: none. Mean of means: 3.5.
    a, b, c = logits_with_loss([1, 2, 3]), logits_with_loss([5]), logits_with_loss([4, 4])
    parts = [
        token_loss(a, torch.ones(1, 3, dtype=torch.long)),
        token_loss(b, torch.ones(1, 1, dtype=torch.long)),
        token_loss(c, torch.zeros(1, 2, dtype=torch.long)),
    ]
    total, tokens = (sum(column) for column in zip(*parts, strict=True))
    assert float(total / tokens) == pytest.approx(2.75, abs=1e-12)
    together = torch.cat((a, b, c), 1)
    whole = token_loss(together, torch.tensor([[1, 1, 1, 1, 0, 0]]))
    assert float(whole[0] / whole[1]) == pytest.approx(2.75, abs=1e-12)


def test_a_batch_without_a_real_token_adds_zero_and_no_nan() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    total, tokens = token_loss(logits, torch.zeros(2, 3, dtype=torch.long))
    assert (float(total.detach()), int(tokens)) == (0.0, 0)
    total.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_half_precision_is_summed_in_single() -> None:
    total, _ = token_loss(torch.zeros(1, 2, 4, dtype=torch.bfloat16), torch.tensor([[1, 2]]))
    assert total.dtype == torch.float32


def test_the_schedule_rises_and_falls_as_worked_by_hand() -> None:
    factor = WarmupCosine(warmup=3, steps=6)
    expected = [1 / 3, 2 / 3, 1, 1, 0.75, 0.25]
    assert [factor(step) for step in range(6)] == pytest.approx(expected, abs=1e-12)
    assert factor(6) == factor(99) == pytest.approx(0, abs=1e-12)


def test_a_schedule_that_only_rises_does_not_divide_by_zero() -> None:
    assert WarmupCosine(warmup=2, steps=2)(2) == 1.0
    assert WarmupCosine(warmup=0, steps=4)(0) == 1.0
