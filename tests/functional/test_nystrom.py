"""Nyström attention agrees with its formula, and with exact attention where they meet."""

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.functional.nystrom import pseudo_inverse


def random(q_len: int, kv_len: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(2, 2, length, 8, generator=generator, dtype=torch.float64)
        for length in (q_len, kv_len, kv_len)
    )


def by_formula(q: Tensor, k: Tensor, v: Tensor, landmarks: int) -> Tensor:
    """Equal runs only, and the inverse of a decomposition."""
    some_q, some_k = (x.unflatten(2, (landmarks, -1)).mean(dim=3) for x in (q, k))
    softmax = lambda a, b: torch.softmax(a @ b.mT * q.shape[-1] ** -0.5, dim=-1)  # noqa: E731
    inverse = torch.linalg.pinv(softmax(some_q, some_k))
    return softmax(q, some_k) @ inverse @ softmax(some_q, k) @ v


@pytest.mark.parametrize(("q_len", "kv_len"), [(24, 24), (12, 36)])
def test_it_is_its_formula_once_the_inverse_has_converged(q_len: int, kv_len: int) -> None:
    q, k, v = random(q_len, kv_len)
    output = mh.nystrom_attention(q * 3, k * 3, v, landmarks=4, iterations=30)
    torch.testing.assert_close(output, by_formula(q * 3, k * 3, v, 4), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("landmarks", [9, 20])
def test_a_landmark_for_every_token_is_attention_itself(landmarks: int) -> None:
    q, k, v = random(9, 23)
    torch.testing.assert_close(
        mh.nystrom_attention(q, k, v, landmarks=landmarks), mh.attention(q, k, v)
    )


def test_a_short_sequence_among_long_ones_is_exact_too() -> None:
    """Five real tokens and eight landmarks: three are means of nobody, and do nothing."""
    q, k, v = random(30, 30)
    mask = mh.Padding(lengths=torch.tensor([5, 30]))
    output = mh.nystrom_attention(q, k, v, mask, landmarks=8, iterations=40)
    torch.testing.assert_close(
        output[0, :, :5], mh.attention(q, k, v, mask)[0, :, :5], rtol=1e-6, atol=1e-6
    )


def test_runs_are_equal_to_one_token() -> None:
    """Ten tokens and four landmarks: runs of 3, 2, 3, 2; each value reaches its own run."""
    from manyheads.functional.nystrom import _landmarks

    x = torch.arange(10.0).view(1, 1, 10, 1)
    means, empty = _landmarks(x, None, 4)
    assert means.flatten().tolist() == [1.0, 3.5, 6.0, 8.5]
    assert not empty.any()


def test_the_inverse_keeps_rows_and_columns_of_0() -> None:
    matrix = torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(pseudo_inverse(matrix, 10), torch.linalg.pinv(matrix))
    assert not pseudo_inverse(torch.zeros(2, 2), 6).any()


def test_six_iterations_come_near_smooth_attention() -> None:
    """Scores that change slowly along the sequence, which landmarks can follow."""
    t = torch.linspace(0, 3, 256, dtype=torch.float64)
    q = torch.stack((t.cos(), t.sin()), dim=-1)[None, None] * 2
    v = t[None, None, :, None]
    exact = mh.attention(q, q, v, scale=1.0)
    output = mh.nystrom_attention(q, q, v, landmarks=16, scale=1.0)
    assert (output - exact).abs().max() < 0.06
    assert (exact - v.mean()).abs().max() > 0.5
