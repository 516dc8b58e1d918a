"""Rotary positions: the two layouts, their precision far out, and one count in every chunk."""

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import TOLERANCE, every_dtype, near
from tests.cases.layers import asking_layer, chunks
from torch import Tensor

import manyheads as mh

PERMUTATION = [0, 2, 4, 1, 3, 5]
X = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
Y = [2.0, -1.0, 0.5, 3.0, -2.0, 1.0]


def turned(x: list[float], position: int, pairs: str, dtype: torch.dtype = torch.float64) -> Tensor:
    features = torch.tensor(x, dtype=dtype)[None, None, None]
    return mh.Rotary(len(x), pairs=pairs)(features, position)[0, 0, 0]


@every_dtype
def test_each_layout_turns_its_own_pairs(dtype: torch.dtype) -> None:
    """ROPE-01: interleaved pairs are neighbours, halves lie half a head apart."""
    near(
        turned(X, 3, "interleaved", dtype),
        [
            *(-1.2722325127202, -1.838864985141, 2.4157696930868),
            *(4.3776770997829, 4.9611160101937, 6.0321909728887),
        ],
    )
    near(
        turned(X, 3, "halves", dtype),
        [
            *(-1.5544725288399, 1.2866508928711, 2.9611577843477),
            *(-3.8188499783419, 5.2291996978385, 6.0192644547483),
        ],
    )


def test_the_layouts_agree_where_both_sides_are_permuted_and_only_there() -> None:
    def score(x: list[float], y: list[float], pairs: str) -> Tensor:
        return turned(x, 3, pairs) @ turned(y, 1, pairs)

    permuted = [[values[i] for i in PERMUTATION] for values in (X, Y)]
    near(score(X, Y, "interleaved"), 5.617562082441)
    near(score(*permuted, "halves"), 5.617562082441)
    # The signature of a checkpoint read in the other layout.
    near(score(X, Y, "halves"), -14.728244658219)
    near(turned(X, 3, "interleaved")[PERMUTATION], turned(permuted[0], 3, "halves").numpy())


@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
@pytest.mark.parametrize("position", [0, 1, 3, 1000])
def test_a_turn_keeps_the_length_and_the_gradient_turns_back(position: int, pairs: str) -> None:
    near(turned(X, position, pairs).norm(), 9.5393920141695)
    x = torch.tensor(X, dtype=torch.float64)[None, None, None].requires_grad_()
    rotary = mh.Rotary(6, pairs=pairs)
    turn = rotary.at(position, like=x)
    upstream = torch.tensor(Y, dtype=torch.float64)[None, None, None]
    (turn(x) * turn(upstream)).sum().backward()
    near(x.grad, [[[Y]]])


# ROPE-02: exact cosines of pairs 0 and 20 of 64, and what bf16 positions would make of pair 0.
FAR = {
    256: (-0.039790759931158, -0.25589264901648, -0.039790759931158),
    257: (0.81930552914498, -0.30982133572402, -0.039790759931158),
    4095: (-0.065975996558065, -0.58776004520895, 0.80399061348585),
    15962: (-0.90801590125103, 0.6323017357541, -0.26795007112798),
    131071: (-0.81798349938795, 0.88345134743007, 0.042090815250296),
}


def far_cosines(rotary: torch.nn.Module, position: int | Tensor, dtype: torch.dtype) -> Tensor:
    """The cosines of pairs 0 and 20, read off features that are 1 there and 0 elsewhere."""
    features = torch.zeros(1, 1, 1, 128, dtype=dtype)
    features[..., [0, 20]] = 1.0
    return rotary(features, position)[0, 0, 0, [0, 20]].double()


@every_dtype
@pytest.mark.parametrize("position", FAR)
@pytest.mark.parametrize("cast", [None, torch.bfloat16, torch.float16], ids=str)
def test_far_angles_are_exact_though_the_module_was_cast(
    cast: torch.dtype | None, position: int, dtype: torch.dtype
) -> None:
    rotary = mh.Rotary(128).to(cast)
    stored = torch.finfo(dtype).eps / 2
    angle = 0.0 if dtype == torch.float64 else position * 2**-23
    exact = torch.tensor(FAR[position][:2], dtype=torch.float64)
    for given in (position, torch.tensor([position])):
        error = (far_cosines(rotary, given, dtype) - exact).abs()
        assert error.max() <= stored + angle + 1e-11


def test_bf16_positions_would_have_been_seen() -> None:
    for position, (right, _, low) in FAR.items():
        if position != 256:  # the one position here that bf16 holds
            assert abs(right - low) > 2**-7 + position * 2**-23


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
@pytest.mark.parametrize("start", [0, 257, 15962, 1_000_000])
def test_a_score_knows_the_distance_alone(start: int, pairs: str, dtype: torch.dtype) -> None:
    q, k = (torch.tensor(det((1, 1, 1, 8), number), dtype=dtype) for number in (41, 42))
    rotary = mh.Rotary(8, pairs=pairs)
    score = (rotary(q, start + 5) * rotary(k, start)).sum().double()
    atol = 1e-6 if dtype == torch.float64 else (q.norm() * k.norm() * (start + 5) * 2**-23).item()
    expected = (rotary(q.double(), 5) * rotary(k.double(), 0)).sum()
    torch.testing.assert_close(score, expected, rtol=0, atol=max(atol, 1e-5))
    if pairs == "halves":
        near(expected, -0.20307746745296)


# ROPE-03: five tokens in pieces; each piece goes on counting where the last one stopped.
RIGHT = [-0.39999440952719, -0.24962364986329, -2.2018547054527, -2.1723793154341, -0.203125]
SPLITS = [[5], [4, 1], [2, 2, 1], [1] * 5]


@every_dtype
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("as_tensors", [False, True])
def test_the_last_row_of_scores_is_the_same_for_every_split(
    as_tensors: bool, split: list[int], dtype: torch.dtype
) -> None:
    q, k = (torch.tensor(det((1, 1, 5, 4), number), dtype=dtype) for number in (43, 44))
    rotary, keys = mh.Rotary(4), []
    for chunk in chunks(split):
        positions = torch.arange(chunk.start, chunk.stop) if as_tensors else chunk.start
        keys.append(rotary(k[:, :, chunk], positions))
        queries = rotary(q[:, :, chunk], positions)
    cached = torch.cat(keys, dim=2)
    scores = mh.attention_scores(queries, cached, cached, mh.Causal(), stage="raw")
    torch.testing.assert_close(
        scores[0, 0, -1].double(),
        torch.tensor(RIGHT, dtype=torch.float64),
        rtol=0,
        # two factors of up to 3.6 are rounded before the product
        atol=8 * TOLERANCE[dtype],
    )


def test_the_usual_miscounts_give_other_scores() -> None:
    q, k = (torch.from_numpy(det((1, 1, 5, 4), number)) for number in (43, 44))
    rotary = mh.Rotary(4)

    def last_row(position: int, positions: list[int]) -> Tensor:
        keys = rotary(k, torch.tensor(positions))
        return mh.attention_scores(rotary(q[:, :, 4:], position), keys, keys, stage="raw").flatten()

    near(
        last_row(0, [0, 1, 2, 3, 0]),
        [1.2734375, 0.9722758926157, -1.6864789430828, 0.5868176064014, -0.203125],
    )
    near(
        last_row(8, [0, 1, 4, 5, 8]),
        [1.42938884826, -2.020859294962, -1.7715065395641, 0.30985271898192, -0.203125],
    )


def softmaxed(scores: list[float]) -> Tensor:
    return torch.tensor(scores, dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_a_layer_with_a_cache_counts_on(split: list[int]) -> None:
    """ROPE-03: what the last row's weights are, whatever the pieces."""
    layer, cache = asking_layer(4, rotary=mh.Rotary(4)), mh.GrowingCache()
    x = torch.from_numpy(np.concatenate((det((1, 5, 4), 43), det((1, 5, 4), 44)), axis=-1))
    for chunk in chunks(split):
        _, weights = layer.with_weights(x[:, chunk], mask=mh.Causal(), cache=cache)
    near(weights[0, 0, -1], softmaxed(RIGHT).numpy())
    assert cache.positions.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("start", [0, 1000])
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_so_it_does_from_wherever_the_text_begins(split: list[int], start: int) -> None:
    layer, cache = asking_layer(4, rotary=mh.Rotary(4)), mh.GrowingCache()
    x = torch.from_numpy(np.concatenate((det((1, 5, 4), 43), det((1, 5, 4), 44)), axis=-1))
    first, *others = chunks(split)
    _, weights = layer.with_weights(x[:, first], mask=mh.Causal(), positions=start, cache=cache)
    for chunk in others:
        _, weights = layer.with_weights(x[:, chunk], mask=mh.Causal(), cache=cache)
    near(weights[0, 0, -1], softmaxed(RIGHT).numpy())
