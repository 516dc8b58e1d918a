"""Examples as padded tensors, in a shuffled order that can be taken up anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.tasks import Example, Vocabulary
from manyheads.tasks.vocabulary import BOS_ID, EOS_ID, PAD_ID

# So many batches are sorted by length together: short texts meet short ones and are hardly
# padded, while the order stays nearly random.
_SORTED_TOGETHER = 20


class Batch(NamedTuple):
    """Ids of sources (batch, source_len) and of targets (batch, target_len), begin to end."""

    source: Tensor
    target: Tensor


def encode(examples: Sequence[Example], source: Vocabulary, target: Vocabulary) -> Batch:
    """Turn examples into ids, padded to the longest.

    Example:
        >>> letters = Vocabulary("ab")
        >>> encode([Example("ab", "b", ((1,),), ("",), "ab")], letters, letters)
        Batch(source=tensor([[3, 4]]), target=tensor([[1, 4, 2]]))
    """
    return Batch(
        _padded([source.encode(example.source) for example in examples]),
        _padded([[BOS_ID, *target.encode(example.target), EOS_ID] for example in examples]),
    )


def _padded(rows: list[list[int]]) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([row + [PAD_ID] * (length - len(row)) for row in rows])


@dataclass
class ShuffledBatches:
    """``count`` batches of random examples, epoch after epoch, each without repetition.

    The batch at a position depends on the seed and the position alone; ``state_dict`` is that
    position, so a run that is taken up sees the batches it would have seen.

    Args:
        data: All examples.
        batch_size: Examples in a batch.
        count: Batches in all, over all epochs.
        seed: Of the order.
    """

    data: Batch
    batch_size: int
    count: int
    seed: int
    position: int = 0

    def __post_init__(self) -> None:
        if self.batch_size > len(self.data.source):
            raise OptionError(
                f"batch_size must be at most the {len(self.data.source)} training examples; got "
                f"batch_size={self.batch_size}. Lower it, or raise the task's train_size."
            )
        self._lengths = (self.data.source != PAD_ID).sum(1)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        per_epoch = len(self._lengths) // self.batch_size
        epoch = -1
        while self.position < self.count:
            if self.position // per_epoch != epoch:
                epoch = self.position // per_epoch
                order = self._order(epoch)
            rows = order[self.position % per_epoch]
            self.position += 1
            yield _cut(self.data, rows)

    def _order(self, epoch: int) -> Tensor:
        """Give the rows of each full batch of an epoch, (batches, batch_size)."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._lengths), generator=generator)
        groups = [
            group[self._lengths[group].argsort(stable=True)]
            for group in order.split(self.batch_size * _SORTED_TOGETHER)
        ]
        # Every group but the last holds whole batches, so what is cut off is random too.
        order = torch.cat(groups)
        whole = order[: len(order) // self.batch_size * self.batch_size].view(-1, self.batch_size)
        return whole[torch.randperm(len(whole), generator=generator)]

    def state_dict(self) -> dict[str, int]:
        """Give how many batches were handed out."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind the batches that were handed out."""
        self.position = state["position"]


@dataclass(frozen=True)
class OrderedBatches:
    """All examples once, in their order."""

    data: Batch
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.data.source) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for rows in torch.arange(len(self.data.source)).split(self.batch_size):
            yield _cut(self.data, rows)


def _cut(data: Batch, rows: Tensor) -> Batch:
    """Take rows, without the columns where all of them are padding."""
    return Batch(*(ids[:, : int((ids != PAD_ID).sum(1).max())] for ids in (t[rows] for t in data)))
