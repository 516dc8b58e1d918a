"""How often a model is exactly right, and where it looks when it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.tasks import Example
from manyheads.training.batches import encode
from manyheads.training.checkpoint import Trained

_TOGETHER = 512  # examples in a batch


def exact_match(trained: Trained, examples: Sequence[Example]) -> float:
    """Give the fraction of examples whose target the model writes without a mistake.

    Args:
        trained: The model.
        examples: At least one.

    Raises:
        OptionError: If there is no example.
    """
    _check(examples)
    right = 0
    for start in range(0, len(examples), _TOGETHER):
        part = examples[start : start + _TOGETHER]
        answers = trained.write([example.source for example in part])
        right += sum(a == e.target for a, e in zip(answers, part, strict=True))
    return right / len(examples)


class HeadMass(NamedTuple):
    """How much of its weight a head puts where it should.

    Args:
        attention: The name of the attention, as ``with_weights`` names it ("decoder.0.cross").
        head: The head's number.
        mass: The fraction of its weight on the right source characters, from 0 to 1.
    """

    attention: str
    head: int
    mass: float

    def __str__(self) -> str:
        """Name the head and its mass: "decoder.0.cross head 1: 0.93"."""
        return f"{self.attention} head {self.head}: {self.mass:.2f}"


def alignment_mass(trained: Trained, examples: Sequence[Example]) -> dict[str, list[HeadMass]]:
    """Measure, for each field of the targets, how well each cross-attention head is aligned.

    The rows are those that write a character of the field, under teacher forcing; the mass of a
    row is the sum of its weights, before dropout, on the source characters that carry the field.

    Args:
        trained: The model.
        examples: Those of the test, best.

    Returns:
        By field ("year"), all heads, the best first. Characters without a field or without
        source characters count for nothing.

    Raises:
        OptionError: If there is no example.
    """
    _check(examples)
    sums: dict[str, dict[str, Tensor]] = {}
    counts: dict[str, int] = {}
    training = trained.model.training
    trained.model.eval()
    for start in range(0, len(examples), _TOGETHER):
        part = examples[start : start + _TOGETHER]
        batch = encode(part, trained.source_vocabulary, trained.target_vocabulary)
        with torch.no_grad():
            _, weights = trained.model.with_weights(batch.source, batch.target[:, :-1])
        cross = {name: w for name, w in weights.items() if name.endswith("cross")}
        for name in {field for example in part for field in example.fields} - {""}:
            right = _right_places(part, name, batch)
            counts[name] = counts.get(name, 0) + int(right.any(-1).sum())
            total = sums.setdefault(name, {})
            for attention, w in cross.items():
                # (batch, heads, target_len, source_len) -> (heads,)
                mass = (w * right[:, None]).double().sum((0, 2, 3))
                total[attention] = total.get(attention, torch.zeros_like(mass)) + mass
    trained.model.train(training)
    return {
        name: sorted(
            (
                HeadMass(attention, head, value / counts[name])
                for attention, heads in total.items()
                for head, value in enumerate(heads.tolist())
            ),
            key=lambda head: -head.mass,
        )
        for name, total in sums.items()
        if counts[name]
    }


def _right_places(examples: Sequence[Example], field: str, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mark the source characters of a field, (batch, target_len, source_len)."""
    source, target = batch
    right = torch.zeros(len(source), target.shape[1] - 1, source.shape[1], dtype=torch.bool)
    for row, example in enumerate(examples):
        for place, (name, positions) in enumerate(
            zip(example.fields, example.alignment, strict=True)
        ):
            if name == field:
                right[row, place, list(positions)] = True
    return right


def _check(examples: Sequence[Example]) -> None:
    if not len(examples):
        raise OptionError(
            "examples must be at least one; got examples=0. Pass task.split('test')[:1000]."
        )
