"""Every mistake in making or using a mask is refused by name, with the value and the cure."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import manyheads as mh
from manyheads.errors import DTypeError, ManyheadsError, MaskError, OptionError, PositionError
from manyheads.masks.facts import Side

ONES = torch.ones
BOOL = torch.bool
SENTENCE = r"(?s)^[^;]+ must [^;]+; got .+\. [A-Z].+[.)]$"
"""``{what} must {rule}; got {name}={value}. {what to do}.``"""


def dense(mask: mh.Mask, q_len: int = 3, kv_len: int = 3, **options: object) -> None:
    mask.dense(q_len, kv_len, **options)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Listed(mh.Mask):
    """A user's mask whose keys stand in a list, which nothing can be looked up by."""

    keys: list[int]

    def allows(self, head: torch.Tensor, q: Side, kv: Side) -> torch.Tensor:
        return torch.isin(kv.position, torch.tensor(self.keys))


MISTAKES: list[tuple[Callable[[], object], type[ManyheadsError], str]] = [
    (
        lambda: dense(mh.Causal() & Listed([0, 2])),
        MaskError,
        r"fields of a mask must be hashable.*keys=\[0, 2\].*Write lists as tuples",
    ),
    (lambda: mh.Window(), OptionError, "Window must have a size, or before or after; got none"),
    (lambda: mh.Window(3, before=1), OptionError, "got size=3, before=1, after=None"),
    (lambda: mh.Window(0), OptionError, "size must be an int of at least 1; got size=0"),
    (lambda: mh.Window(-3), OptionError, "size must be an int of at least 1; got size=-3"),
    (lambda: mh.Window(2.5), OptionError, "got size=2.5"),  # type: ignore[arg-type]
    (lambda: mh.Window(True), OptionError, "got size=True"),
    (lambda: mh.Window(after=-2), OptionError, "after must be an int of at least 0; got after=-2"),
    (lambda: mh.Window(before=-1), OptionError, "before must be an int of at least 0"),
    (lambda: mh.Padding(), MaskError, "either keep or lengths; got neither"),
    (lambda: mh.Padding(ONES(1, 2), lengths=ONES(1).long()), MaskError, "got both"),
    (lambda: mh.Padding(ONES(2, 3)), MaskError, "must be bool.*got keep=torch.float32"),
    (lambda: mh.Padding(ONES(3, dtype=BOOL)), MaskError, r"\(batch, kv_len\); got shape \(3,\)"),
    (lambda: mh.Padding([True]), DTypeError, "torch.Tensor; got keep=list"),  # type: ignore[arg-type]
    (lambda: mh.Padding(lengths=ONES(2)), MaskError, "lengths must be int .*torch.float32"),
    (
        lambda: mh.Padding(lengths="ab"),
        MaskError,
        r"lengths must be int \(batch,\); got lengths='ab'",
    ),
    (lambda: mh.Padding(lengths=ONES(2).cfloat()), MaskError, "torch.complex64"),
    (lambda: mh.Documents(ONES(2, 3).cfloat()), MaskError, "got ids=torch.complex64"),
    (lambda: mh.Prefix(ONES(2).cfloat()), MaskError, "got torch.complex64"),
    (lambda: mh.Global(ONES(1, 3).bool(), [True]), DTypeError, "got query_tags=list"),
    (lambda: mh.Global(0, ONES(1, 3).bool()), MaskError, "with a tensor of.*got positions=0"),
    (lambda: mh.Padding(lengths=torch.tensor([-1])), MaskError, r"0 or more; got lengths=\[-1\]"),
    (lambda: dense(mh.Padding(lengths=torch.tensor([9]))), MaskError, "at most kv_len=3"),
    (
        lambda: dense(mh.Padding(ONES(2, 3, dtype=BOOL)), 3, 4, batch=2),
        MaskError,
        r"\(batch, length\) = \(2, 4\); got shape \(2, 3\)",
    ),
    (lambda: mh.Documents(ONES(2, 3)), MaskError, "ids must be integers; got ids=torch.float32"),
    (lambda: mh.Documents(ONES(3).long()), MaskError, r"write ids\[None\]"),
    (lambda: mh.Documents(ONES(1, 3).long(), ONES(1, 3)), MaskError, "query_ids must be integers"),
    (
        lambda: dense(mh.Documents(ONES(1, 3).long()), 4),
        MaskError,
        "document of the queries must be known; got q_len=4, kv_len=3",
    ),
    (lambda: mh.Prefix(-1), OptionError, "length must be an int of at least 0"),
    (lambda: mh.Prefix(ONES(2, 2).long()), MaskError, r"int \(batch,\); got torch.int64"),
    (
        lambda: dense(mh.Prefix(torch.tensor([1, 2, 3])), batch=2),
        MaskError,
        r"int \(batch,\) = \(2,\); got shape \(3,\)",
    ),
    (lambda: mh.Global(-1), OptionError, "positions must be an int of at least 0"),
    (lambda: mh.Global(ONES(2, 3)), MaskError, "positions must be ints, or bool"),
    (lambda: mh.PerHead(()), MaskError, r"one Mask for each query head; got \(\)"),
    (
        lambda: dense(mh.PerHead((mh.Causal(),)), num_heads=2),
        MaskError,
        "num_heads=2 query heads; got 1",
    ),
    (lambda: mh.PerHead(mh.Causal()), MaskError, r"query head; got Causal\(\)"),  # type: ignore[arg-type]
    (
        lambda: mh.PerHead((mh.PerHead((mh.Causal(),)), mh.Window(2))),
        MaskError,
        "num_heads=2 query heads; got 1",
    ),
    (
        lambda: dense(mh.Causal(), -1),
        OptionError,
        "q_len must be an int of at least 0; got q_len=-1",
    ),
    (lambda: dense(mh.Causal(), 2.5), OptionError, "q_len=2.5"),  # type: ignore[arg-type]
    (
        lambda: mh.Causal().draw(3, -2),
        OptionError,
        "kv_len must be .* of at least 0; got kv_len=-2",
    ),
    (lambda: mh.Causal().describe(True), OptionError, "q_len=True"),
    (lambda: dense(mh.Causal(), batch=-1), OptionError, "batch must be an int of at least 0"),
    (lambda: dense(mh.Causal(), num_heads=0), OptionError, "num_heads must be .* at least 1"),
    (lambda: mh.Rule(3, "x"), MaskError, "callable; got function=3"),  # type: ignore[arg-type]
    (
        lambda: dense(mh.Rule(lambda head, q, kv: q - kv, "distance")),
        MaskError,
        "got torch.int64 from distance",
    ),
    (
        lambda: dense(mh.Rule(lambda head, q, kv: True, "yes")),  # type: ignore[arg-type]
        MaskError,
        "got bool from yes",
    ),
    (
        lambda: dense(mh.Rule(lambda head, q, kv: ONES(2, 2, dtype=BOOL), "square")),
        MaskError,
        r"broadcasts to \(1, 1, 3, 3\); got shape \(2, 2\) from square",
    ),
    (
        lambda: dense(mh.Rule(lambda head, q, kv: (q >= kv)[None], "deep")),
        MaskError,
        r"got shape \(1, 1, 1, 3, 3\) from deep",
    ),
    (lambda: mh.Dense(ONES(3, 3)), DTypeError, "must be bool, True = may see; got mask=torch.fl"),
    (lambda: mh.Dense(ONES(3, 3).int()), DTypeError, "got mask=torch.int32.*from_attention_mask"),
    (lambda: mh.Dense(ONES(2, 3, 3, dtype=BOOL)), MaskError, r"got shape \(2, 3, 3\)"),
    (lambda: dense(mh.Dense(ONES(3, 4, dtype=BOOL))), MaskError, r"\(\.\.\., 3, 3\)"),
    (
        lambda: dense(mh.Dense(ONES(2, 1, 3, 3, dtype=BOOL)), batch=3),
        MaskError,
        r"batch must be 1 or 3; got shape \(2, 1, 3, 3\)",
    ),
    (
        lambda: dense(mh.Dense(ONES(1, 3, 3, 3, dtype=BOOL)), num_heads=2),
        MaskError,
        "heads must be 1 or num_heads=2",
    ),
    (lambda: mh.Causal() and mh.Window(2), MaskError, "combined with &, | and ~"),
    (lambda: mh.Causal() & 3, DTypeError, "a Mask or a bool tensor; got mask=int"),  # type: ignore[operator]
    (lambda: dense(mh.Causal(), q_pos=0), MaskError, "got q_pos without kv_pos. Add kv_pos="),
    (lambda: dense(mh.Causal(), kv_pos=0), MaskError, "got kv_pos without q_pos. Add q_pos="),
    (
        lambda: dense(mh.Causal(), q_pos=torch.arange(2), kv_pos=0),
        PositionError,
        r"\(batch, length\) = \(1, 3\); got shape \(2,\)",
    ),
    (
        lambda: dense(mh.Causal(), q_pos=torch.arange(3.0), kv_pos=0),
        PositionError,
        "q_pos must be integers; got q_pos=torch.float32",
    ),
    (
        lambda: dense(mh.Causal(), q_pos=ONES(3, dtype=torch.complex128), kv_pos=0),
        PositionError,
        "got q_pos=torch.complex128",
    ),
    (lambda: dense(mh.Causal(), q_pos=2.0, kv_pos=0), PositionError, "got q_pos=2.0"),
    (lambda: dense(mh.Causal(), q_pos=True, kv_pos=0), PositionError, "got q_pos=True"),
]


@pytest.mark.parametrize(("mistake", "kind", "words"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_refused_by_name(
    mistake: Callable[[], object], kind: type[ManyheadsError], words: str
) -> None:
    with pytest.raises(kind, match=words) as refused:
        mistake()
    assert pytest.RaisesExc(kind, match=SENTENCE).matches(refused.value), str(refused.value)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused", "blocks"])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_heads_and_their_masks_are_counted_on_every_backend(backend: str, count: int) -> None:
    q = torch.randn(1, 4, 200, 8)
    own = mh.PerHead((mh.Causal() & mh.Window(3),) * count)
    pairs = mh.Dense(torch.ones(1, count, 200, 200).tril().bool())
    per_head = mh.PerHead((mh.Causal(), mh.Window(2), mh.Causal(), mh.Window(9)))
    for mask in (own, own & mh.Padding(lengths=torch.tensor([180])), pairs, pairs & per_head):
        with pytest.raises(MaskError, match=rf"num_heads=4.*got (shape \(1, )?{count}"):
            mh.attention(q, q, q, mask, backend=backend)
