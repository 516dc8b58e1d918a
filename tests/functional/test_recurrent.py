"""The recurrence under padding and splits, beside what ONNX's cases say of its numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import DTypeError, MaskError, ShapeError
from manyheads.functional import recurrent_attention

Q, K, V = torch.randn(3, 2, 2, 9, 4, generator=torch.Generator().manual_seed(0)).double()
K = K / K.norm(dim=-1, keepdim=True)
DECAY, BETA = -torch.rand(2, 2, 2, 9, 1, generator=torch.Generator().manual_seed(1)).double()
GATES = {"decay": DECAY, "beta": -BETA}


@pytest.mark.parametrize("sizes", [(1,) * 9, (4, 5), (0, 9, 0)])
def test_a_state_carries_a_sequence_over_any_split(sizes: tuple[int, ...]) -> None:
    whole, end = recurrent_attention(Q, K, V, mh.Causal(), **GATES)
    state: Tensor | None = None
    parts = []
    for q, k, v, decay, beta in zip(
        *(x.split(sizes, dim=2) for x in (Q, K, V, *GATES.values())), strict=True
    ):
        output, state = recurrent_attention(
            q, k, v, mh.Causal(), decay=decay, beta=beta, state=state
        )
        parts.append(output)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole)
    torch.testing.assert_close(state, end)


def test_padding_neither_writes_nor_forgets_whatever_it_holds() -> None:
    keep = torch.tensor([True, False, True, True, False, True, True, False, False])
    k, v = (x.masked_fill(~keep[:, None], torch.nan) for x in (K, V))
    gates = {name: gate.masked_fill(~keep[:, None], torch.nan) for name, gate in GATES.items()}
    mask = mh.Causal() & mh.Padding(keep.expand(2, -1))
    output, state = recurrent_attention(Q, k, v, mask, **gates)
    short = {name: gate[:, :, keep] for name, gate in GATES.items()}
    expected, end = recurrent_attention(*(x[:, :, keep] for x in (Q, K, V)), mh.Causal(), **short)
    torch.testing.assert_close(output[:, :, keep], expected)
    torch.testing.assert_close(state, end)


def test_the_delta_rule_writes_over_what_stands_under_a_key() -> None:
    """Two values under one key of norm 1: with beta = 1 the second alone is read."""
    k = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).view(1, 1, 2, 2)
    v = torch.tensor([[5.0], [7.0]]).view(1, 1, 2, 1)
    ones = torch.ones(1, 1, 2, 1)
    output, _ = recurrent_attention(k, k, v, mh.Causal(), beta=ones, scale=1.0)
    assert output.flatten().tolist() == [5.0, 7.0]
    output, _ = recurrent_attention(k, k, v, mh.Causal(), scale=1.0)
    assert output.flatten().tolist() == [5.0, 12.0]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"mask": None}, MaskError, r"must have Causal\(\) and q_len = kv_len; got mask=None"),
        ({"mask": mh.Window(3)}, MaskError, r"mask must be Causal\(\), Padding.*takes any mask"),
        ({"q": Q[:, :, :5]}, MaskError, r"got mask=Causal\(\), q_len=5, kv_len=9\. Each token"),
        ({"decay": DECAY[..., 0]}, ShapeError, r"decay must be .*1 or 4\).*write decay\[\.\.\., N"),
        ({"beta": DECAY.expand(-1, -1, -1, 4)}, ShapeError, r"beta must be .*length, 1\)"),
        ({"decay": DECAY.long()}, DTypeError, "decay must be a floating.*got decay=torch.int64"),
        ({"state": torch.zeros(2, 2, 4, 5)}, ShapeError, r"state must be .*\(2, 2, 4, 4\); got"),
    ],
)
def test_mistakes_are_named_with_their_cure(
    changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    arguments = {"q": Q, "k": K, "v": V, "mask": mh.Causal(), **changes}
    with pytest.raises(kind, match=message):
        recurrent_attention(**arguments)
