"""What happens during a run: stop when it is right, save, keep the randomness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor


class StopWhenRight(Callback):
    """End the run once enough validation examples are written without a mistake.

    Args:
        stop_at: The fraction that is enough; above 1 never.

    Attributes:
        step: The step of the last look at the validation split, None before the first.
        exact_match: What it found, a fraction.
    """

    def __init__(self, stop_at: float) -> None:
        self.stop_at = stop_at
        self.step: int | None = None
        self.exact_match = 0.0

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.step = trainer.global_step
        self.exact_match = float(trainer.callback_metrics["exact_match"])
        self._stop_if_right(trainer)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A run that was over stays over when it is taken up.
        self._stop_if_right(trainer)

    def _stop_if_right(self, trainer: L.Trainer) -> None:
        trainer.should_stop = trainer.should_stop or self.exact_match >= self.stop_at

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "exact_match": self.exact_match}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self.exact_match = state_dict["step"], state_dict["exact_match"]


class SaveAfterCheck(Callback):
    """Save the run after every look at the validation split, so that it can be taken up there.

    Stands behind ``StopWhenRight`` in the list of callbacks, whose verdict is saved with the run.

    Args:
        path: The file to replace.
        description: What is trained and how; saved with the run, so that another cannot be
            taken up in its place.
        also: Called once the file is in place.
    """

    def __init__(self, path: Path, description: dict[str, Any], also: Callable[[], None]) -> None:
        self.path = path
        self.description = description
        self.also = also

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["manyheads"] = self.description

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "fit":
            trainer.save_checkpoint(self.path)
            self.also()


class KeepRandomness(Callback):
    """Save torch's generators with the run, and set them back when it is taken up.

    They are set back before the first batch, after everything else that Lightning does at the
    start, so that dropout goes on as if the run had never been interrupted.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Tensor] | None = None

    def state_dict(self) -> dict[str, Any]:
        states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states |= {f"cuda:{n}": s for n, s in enumerate(torch.cuda.get_rng_state_all())}
        return states

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._loaded is None:
            return
        for device, state in self._loaded.items():
            if device == "cpu":
                torch.set_rng_state(state)
            else:
                torch.cuda.set_rng_state(state, device)
        self._loaded = None


@runtime_checkable
class Watched(Protocol):
    """What is told the loss of each step, such as `manyheads.doctor.monitor`."""

    def step(self, loss: Tensor) -> None:
        """Hear the loss of a step, after backward."""

    def close(self) -> None:
        """Be told no more."""


class WatchTraining(Callback):
    """Tell a monitor the loss of each step, once its gradients are there.

    Args:
        watched: What to tell, ``manyheads.doctor.monitor(model)``.
    """

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._loss: Tensor | None = None

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        self._loss = loss.detach()

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._loss is not None:
            self.watched.step(self._loss)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.watched.close()
