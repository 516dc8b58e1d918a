"""Each head's map comes back as its own; an average is the reader's to take."""

import math

import pytest
import torch
from tests.cases.exact import every_backend, every_dtype, near
from tests.cases.layers import put
from torch import Tensor

import manyheads as mh


def opposite_heads(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """HEAD-01: head 0 looks straight, head 1 crosswise, so sharply that nothing else is left."""
    straight = torch.eye(2, dtype=dtype)
    q = torch.stack((straight, straight.flip(0)))[None]
    k = torch.stack((straight, straight))[None]
    return q, k, k.clone()


def entropy(weights: Tensor) -> Tensor:
    return -torch.special.xlogy(weights, weights).sum(-1)


@every_dtype
def test_heads_that_look_opposite_ways_are_told_apart(dtype: torch.dtype) -> None:
    _, weights = mh.attention_with_weights(*opposite_heads(dtype), scale=1000.0)
    assert weights.shape == (1, 2, 2, 2)
    assert weights[0].tolist() == [[[1, 0], [0, 1]], [[0, 1], [1, 0]]]
    # Their average is flat, and hides that each of them is sharp.
    averaged = weights.mean(dim=1)[0]
    assert averaged.eq(0.5).all()
    assert entropy(weights.double()).eq(0).all()
    near(entropy(averaged.double()), [math.log(2)] * 2)


@every_backend
@every_dtype
def test_every_backend_mixes_by_the_same_maps(dtype: torch.dtype, backend: str) -> None:
    q, k, v = opposite_heads(dtype)
    output = mh.attention(q, k, v, scale=1000.0, backend=backend)
    # v is the unit matrix, so that the output is the weights.
    assert output[0].tolist() == [[[1, 0], [0, 1]], [[0, 1], [1, 0]]]


@pytest.mark.parametrize("stage", ["masked", "softmax"])
def test_scores_have_a_map_for_each_query_head_of_a_group(stage: str) -> None:
    q, k, v = opposite_heads(torch.float64)
    scores = mh.attention_scores(q, k[:, :1], v[:, :1], scale=1.0, stage=stage)
    assert scores.shape == (1, 2, 2, 2)
    near(scores[0, 1], scores[0, 0].flip(0).numpy())


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_returns_each_head_s_own_map(training: bool) -> None:
    layer = mh.MultiHeadAttention(2, 2, head_dim=2, bias=False, dtype=torch.float64)
    straight = torch.eye(2)
    put(layer.q_proj.weight, 2000 * torch.cat((straight, straight.flip(0))))
    put(layer.k_proj.weight, torch.cat((straight, straight)))
    x = straight.double()[None]
    out, weights = layer.train(training).with_weights(x)
    assert weights[0].tolist() == [[[1, 0], [0, 1]], [[0, 1], [1, 0]]]
    near(out, layer(x).detach().numpy())
