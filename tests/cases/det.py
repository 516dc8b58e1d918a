"""Inputs by a rule: anyone can make them again, and every dtype holds them exactly."""

import math

import numpy as np


def det(shape: tuple[int, ...], k: int) -> np.ndarray:
    """The k-th float64 array of a shape: multiples of 1/8 between -15/8 and 15/8.

    Element i = 1, 2, ... of the flat array is ((7 i^2 + 13 k i + 5 k) mod 31 - 15) / 8.
    """
    i = np.arange(1, math.prod(shape) + 1)
    return (((7 * i * i + 13 * k * i + 5 * k) % 31 - 15) / 8).reshape(shape)
