"""A self-attention layer beside layers written by hand and torch's own."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row, every
from benchmarks.peers import HandWritten, Torch
from benchmarks.rounds import best_of, interleave, ratio

D_MODEL, NUM_HEADS = 512, 8
BY_HAND = ["separate", "packed"]
Step = Callable[[], object]


@dataclass(frozen=True)
class Cell:
    """One case of the comparison.

    Args:
        batch: Sequences.
        length: Tokens of each.
        marks: Which of "causal", "padding" and "rotary" are in play.
        dtype: Of weights and stream.
        training: Forward and backward, or forward alone without gradients.
    """

    batch: int
    length: int
    marks: frozenset[str]
    dtype: torch.dtype = torch.float32
    training: bool = False

    def __str__(self) -> str:
        marks = "+".join(sorted(self.marks)) or "plain"
        work = "forward+backward" if self.training else "forward"
        return f"({self.batch}, {self.length}) {marks} {str(self.dtype)[6:]} {work}"

    @property
    def rounds(self) -> int:
        """21 at small sizes and 7 at large; a dtype that the processor lacks counts as large."""
        emulated = self.dtype != torch.float32 and not torch.cpu._is_avx512_bf16_supported()
        return 7 if self.length > 512 or emulated else 21


def cells(plan: Plan) -> Iterator[Cell]:
    """The cells of a plan, cheap ones first."""
    causal, padding, rotary = "causal", "padding", "rotary"
    passes = (False, True)
    if plan.effort == "full":
        marks = [
            frozenset(m)
            for n in range(4)
            for m in itertools.combinations((causal, padding, rotary), n)
        ]
        dtypes = (torch.float32, torch.bfloat16)
        sizes = ((32, 128), (8, 512), (2, 2048), (1, 8192))
        for dtype, size, training, mark in itertools.product(dtypes, sizes, passes, marks):
            yield Cell(*size, mark, dtype, training)
        return
    few = [frozenset(), frozenset({causal, padding}), frozenset({causal, rotary})]
    if plan.effort == "quick":
        for mark, training in itertools.product(few, passes):
            yield Cell(2, 64, mark, training=training)
        return
    for training in passes:
        for size, mark in itertools.product(((32, 128), (8, 512)), few):
            yield Cell(*size, mark, training=training)
        for mark in few[1:]:
            yield Cell(2, 2048, mark, training=training)
        if not training:
            yield Cell(1, 8192, few[1])
    for training in passes:
        yield Cell(32, 128, frozenset({causal}), torch.bfloat16, training)


def stream(cell: Cell) -> tuple[Tensor, Tensor | None]:
    """What all contenders are given: a stream, and which of its tokens are there."""
    torch.manual_seed(0)
    x = torch.randn(cell.batch, cell.length, D_MODEL, dtype=cell.dtype)
    if "padding" not in cell.marks:
        return x, None
    # Ragged: from half the length to nearly all of it.
    lengths = torch.linspace(0.5, 0.95, cell.batch).mul(cell.length).long()
    return x, torch.arange(cell.length) < lengths[:, None]


def contenders(cell: Cell) -> dict[str, Step]:
    """One step of each contender, by name; ours first."""
    x, keep = stream(cell)
    causal, rotary = "causal" in cell.marks, "rotary" in cell.marks
    ours = mh.MultiHeadAttention(
        D_MODEL, NUM_HEADS, rotary=mh.Rotary(D_MODEL // NUM_HEADS) if rotary else None
    )

    def call_ours(x: Tensor) -> Tensor:
        mask = mh.Causal() if causal else None
        if keep is not None:
            mask = mh.Padding(keep) if mask is None else mask & mh.Padding(keep)
        return ours(x, mask=mask)

    layers: dict[str, nn.Module] = {
        name: HandWritten(
            D_MODEL,
            NUM_HEADS,
            packed=name == "packed",
            causal=causal,
            rotary_length=cell.length if rotary else None,
        )
        for name in BY_HAND
    }
    if not rotary:
        layers["torch"] = Torch(D_MODEL, NUM_HEADS, causal=causal)
    steps = {"ours": _step(cell, x, ours, call_ours)}
    for name, layer in layers.items():
        steps[name] = _step(cell, x, layer, lambda x, layer=layer: layer(x, keep))
    return steps


def _step(cell: Cell, x: Tensor, layer: nn.Module, call: Callable[[Tensor], Tensor]) -> Step:
    layer.to(cell.dtype).train(cell.training)
    x = x.clone().requires_grad_(cell.training)

    def step() -> None:
        if not cell.training:
            with torch.no_grad():
                call(x)
            return
        call(x).mean().backward()
        layer.zero_grad()
        x.grad = None

    return step


def measure(plan: Plan) -> Iterator[Row]:
    for cell in cells(plan):
        if str(cell) in plan.done:
            continue
        times = interleave(contenders(cell), plan.choose(quick=5, usual=cell.rounds))
        hand = best_of(BY_HAND, times)
        yield {
            "cell": str(cell),
            "rounds": len(times["ours"]),
            "ours ms": 1000 * float(np.median(times["ours"])),
            "better by hand": hand,
            "ours / by hand": vars(ratio(times["ours"], times[hand])),
            "ours / nn.MultiheadAttention": (
                vars(ratio(times["ours"], times["torch"])) if "torch" in times else None
            ),
        }


def judge(rows: Sequence[Row]) -> list[Goal]:
    roomy = [row for row in rows if "rotary" in row["cell"] or "causal+padding" in row["cell"]]
    by_hand = "ours / by hand"
    return [
        every(
            "at most 1.05 of the better layer by hand (upper end)",
            [row for row in rows if "padding" not in row["cell"]],
            by_hand,
            lambda row: 1.05,
        ),
        every(
            "at most 1.10 of it with padding (upper end)",
            [row for row in rows if "padding" in row["cell"]],
            by_hand,
            lambda row: 1.10,
        ),
        every("below 1 with rotary or a structured mask", roomy, by_hand, lambda row: 1.0),
        every(
            "faster than nn.MultiheadAttention (upper end below 1)",
            rows,
            "ours / nn.MultiheadAttention",
            lambda row: 1.0,
        ),
    ]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(8, 1 + 0.3 * len(rows)))
    axes = figure.add_subplot()
    looks = {"ours / by hand": "o", "ours / nn.MultiheadAttention": "s"}
    for shift, (name, marker) in enumerate(looks.items()):
        shown = [(y, row[name]) for y, row in enumerate(rows) if row[name] is not None]
        middles = [value["median"] for _, value in shown]
        errors = [
            [value["median"] - value["low"] for _, value in shown],
            [value["high"] - value["median"] for _, value in shown],
        ]
        places = [y + 0.25 * shift for y, _ in shown]
        axes.errorbar(middles, places, xerr=errors, fmt=marker, capsize=3, label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["cell"] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("CPU time, ratio with 95 % interval; left of 1 we are faster")
    axes.legend()
    return figure


LAYER = Benchmark(
    "layer",
    "How fast is a self-attention layer (d_model 512, 8 heads) beside others?",
    ("cell",),
    measure,
    judge,
    draw,
)
