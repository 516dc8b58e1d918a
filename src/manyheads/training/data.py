"""A task's splits as batches."""

from __future__ import annotations

import lightning as L

from manyheads.tasks import Task
from manyheads.training.batches import Batch, OrderedBatches, ShuffledBatches, encode
from manyheads.training.recipe import Recipe

_TOGETHER = 512  # validation examples that are written at once


class TaskData(L.LightningDataModule):
    """A task's splits as Lightning wants them, encoded once, in one process.

    The training batches hold a position, which Lightning saves and restores with the run, so a
    run that is taken up goes on with the batch it would have seen.

    Args:
        task: The task.
        recipe: Batch size, accumulation, steps and seed.
    """

    def __init__(self, task: Task, recipe: Recipe) -> None:
        super().__init__()
        self.task = task
        self.recipe = recipe
        self._vocabularies = task.source_vocabulary, task.target_vocabulary

        self._train: Batch | None = None

    def setup(self, stage: str) -> None:
        if self._train is not None:
            return
        self._train = encode(self.task.split("train"), *self._vocabularies)
        self._validation = encode(self.task.split("validation"), *self._vocabularies)

    @property
    def max_new_tokens(self) -> int:
        """The longest target of the training split in tokens, its end included."""
        assert self._train is not None
        return self._train.target.shape[1] - 1

    def train_dataloader(self) -> ShuffledBatches:
        assert self._train is not None
        recipe = self.recipe
        return ShuffledBatches(
            self._train, recipe.batch_size, recipe.steps * recipe.accumulate, recipe.seed
        )

    def val_dataloader(self) -> OrderedBatches:
        return OrderedBatches(self._validation, _TOGETHER)
