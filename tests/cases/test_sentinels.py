"""Hidden means minus infinity: no dtype is too narrow for it and no real score lies below it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near

import manyheads as mh

LENGTH = 6
MASKS: dict[str, Callable[[], mh.Mask]] = {
    "causal": mh.Causal,
    "window": lambda: mh.Causal() & mh.Window(2),
    "not": lambda: ~mh.Window(2),
    "padding": lambda: mh.Padding(lengths=torch.tensor([4])),
    "documents": lambda: mh.Documents(torch.tensor([[0, 0, 1, 1, 1, 2]])),
    "global": lambda: mh.Window(2) | mh.Global(3),
    "prefix": lambda: mh.Causal() | mh.Prefix(3),
    "per head": lambda: mh.PerHead((mh.Causal(), mh.Window(1))),
    "rule": lambda: mh.Rule(lambda head, q, kv: (q + kv) % 2 == 0, "checkered"),
    "dense": lambda: mh.Dense(torch.eye(LENGTH, dtype=torch.bool)),
}


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [*MASKS, "from minus 1e9"])
def test_every_mask_works_in_half_precision(name: str, dtype: torch.dtype, backend: str) -> None:
    """MASK-06: -1e9 cannot be stored in fp16, so no mask may need it."""
    if name == "from minus 1e9":
        # finfo.min, the usual stand-in, added to itself where two masks overlap
        lowest = torch.full((LENGTH, LENGTH), torch.finfo(dtype).min, dtype=dtype).triu(1)
        mask = mh.from_attn_mask(lowest + lowest)
    else:
        mask = MASKS[name]()
    shape = (1, 2, LENGTH, 4)
    allow = mask.dense(LENGTH, num_heads=2).numpy()
    exact = Exact(*(det(shape, number) for number in (15, 16, 17, 18)), allow=allow)
    exact.agrees(dtype, backend, mask)


@every_backend
@every_dtype
@pytest.mark.parametrize(
    "hide",
    [
        lambda: {"mask": mh.Padding(torch.arange(10)[None] < 2)},
        lambda: {"mask": mh.Prefix(2), "q_pos": QUERY, "kv_pos": KEYS},
        lambda: {"mask": (torch.arange(10) < 2)[None]},
    ],
    ids=["padding", "positions", "dense"],
)
def test_a_real_score_of_minus_15000_outweighs_a_hidden_one(
    hide: Callable[[], dict], dtype: torch.dtype, backend: str
) -> None:
    """MASK-06: two far keys are seen, eight near ones are not; a fill of -1e4 would win."""
    bias = -0.5 * (QUERY[:, None] - KEYS[None]).float()
    q, k, v = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 10, 4), torch.eye(10)[None, None]
    output = mh.attention(
        q.to(dtype), k.to(dtype), v.to(dtype), **hide(), bias=bias, backend=backend
    )
    # v is the unit matrix, so that the output is the weights.
    near(output[0, 0, 0, :2], np.array([0.37754066879815, 0.62245933120185]))
    assert output[0, 0, 0, 2:].eq(0).all()


QUERY = torch.tensor([30001])
KEYS = torch.tensor([0, 1, *range(29993, 30001)])


@every_backend
@every_dtype
def test_scores_at_the_edge_of_the_dtype_do_not_reach_hidden_keys(
    dtype: torch.dtype, backend: str
) -> None:
    """A neighbour of MASK-06: real scores as low as they come, about -24000."""
    q = torch.full((1, 1, 2, 16), 55.0, dtype=dtype)
    k = torch.full((1, 1, 3, 16), -110.0, dtype=dtype)
    k[:, :, 2] = 0.0  # the hidden key has the highest score by far
    v = torch.eye(3, dtype=dtype)[None, None]
    output = mh.attention(q, k, v, mh.Padding(lengths=torch.tensor([2])), backend=backend)
    near(output[0, 0], np.array([[0.5, 0.5, 0.0]] * 2))
    assert output[0, 0, :, 2].eq(0).all()
