"""Layers whose weights are written down, so that their numbers can be worked out by hand."""

from itertools import pairwise

import torch
from torch import Tensor

import manyheads as mh


def put(weight: Tensor, values: object) -> None:
    """Write numbers into a parameter."""
    with torch.no_grad():
        weight.copy_(torch.as_tensor(values))


def plain_layer(d_model: int, num_heads: int, **options: object) -> mh.MultiHeadAttention:
    """A float64 layer without biases whose projections are the identity."""
    layer = mh.MultiHeadAttention(d_model, num_heads, bias=False, dtype=torch.float64, **options)
    for weight in layer.parameters():
        put(weight, torch.eye(*weight.shape))
    return layer


def asking_layer(width: int, **options: object) -> mh.MultiHeadAttention:
    """One float64 head that reads its query from the first half of x and its key from the second.

    So that scores can be set by numbers for q and k alone; its weights tell them.
    """
    layer = mh.MultiHeadAttention(
        2 * width, 1, head_dim=width, bias=False, dtype=torch.float64, **options
    )
    for weight in layer.parameters():
        put(weight, torch.zeros_like(weight))
    put(layer.q_proj.weight[:, :width], torch.eye(width))
    put(layer.k_proj.weight[:, width:], torch.eye(width))
    return layer


def chunks(split: list[int]) -> list[slice]:
    """Slices of a sequence that is cut into pieces of these lengths."""
    ends = torch.tensor([0, *split]).cumsum(0).tolist()
    return [slice(start, end) for start, end in pairwise(ends)]
