"""How far a run is, on the terminal."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, TQDMProgressBar


def progress_bar(title: str) -> Callback:
    """Give a bar of steps, loss and exact match: rich's, or Lightning's plain one without rich."""
    try:
        return StepBar(title)
    except ImportError:
        return TQDMProgressBar(refresh_rate=10)


class StepBar(Callback):
    """One bar for the whole run, and one line for each look at the validation split.

    Args:
        title: Stands before the bar.
    """

    def __init__(self, title: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps  {task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        self._row = self._bar.add_task(title, total=None, loss="")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._bar.update(self._row, total=trainer.max_steps, completed=trainer.global_step)
        self._bar.start()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        loss = trainer.callback_metrics.get("loss")
        text = "" if loss is None else f"loss {loss:.4f}"
        self._bar.update(self._row, completed=trainer.global_step, loss=text)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        right = float(trainer.callback_metrics["exact_match"])
        self._bar.console.print(
            f"step {trainer.global_step}: {right:.2%} of the validation split exactly right",
            highlight=False,
        )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._bar.stop()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._bar.stop()
