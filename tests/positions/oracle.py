"""Numbers made without the package: numpy in float64, written from the papers."""

import numpy as np


def det(*shape: int, k: int) -> np.ndarray:
    """Eighths between -15/8 and 15/8, exact in every dtype: element i is the k-th row's i-th."""
    i = np.arange(1, np.prod(shape) + 1)
    return ((7 * i * i + 13 * k * i + 5 * k) % 31 - 15).reshape(shape) / 8


def sinusoid(positions: object, width: int, base: float = 10000.0) -> np.ndarray:
    """Sines in the even columns, cosines in the odd ones."""
    column = np.arange(width)
    angles = np.asarray(positions, float)[..., None] / base ** (column // 2 * 2 / width)
    return np.where(column % 2 == 0, np.sin(angles), np.cos(angles))


def turned(
    x: np.ndarray, positions: object, pairs: str, base: float = 10000.0, width: int | None = None
) -> np.ndarray:
    """``x`` (..., length, head_dim) turned feature by feature; the first ``width`` of them."""
    width = width or x.shape[-1]
    half = width // 2
    out = x.astype(float).copy()
    for i in range(half):
        a, b = (i, i + half) if pairs == "halves" else (2 * i, 2 * i + 1)
        angle = np.asarray(positions, float) * base ** (-2 * i / width)
        out[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        out[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
    return out


def attended(x: np.ndarray) -> np.ndarray:
    """Causal attention of a stream (length, width) to itself: one head, no projections."""
    scores = x @ x.T / np.sqrt(x.shape[-1])
    scores[np.triu_indices(len(x), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ x
