"""Hugging Face's Trainer, watched by the doctor."""

from typing import Any

from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from manyheads.doctor import Monitor
from manyheads.errors import OptionError


class WatchTrainer(TrainerCallback):
    """Tell a monitor the loss of each step of a Trainer, while its gradients are there.

    The loss is read from what the model answers, as Hugging Face's models give it for labels.

    Args:
        watched: What to tell, ``manyheads.doctor.monitor(model)``.

    Example:
        >>> import torch, manyheads as mh
        >>> model = torch.nn.Linear(4, 4)
        >>> WatchTrainer(mh.doctor.monitor(model)).watched.alarms
        []
    """

    def __init__(self, watched: Monitor) -> None:
        self.watched = watched
        self._loss: Tensor | None = None
        self._hook = watched.model.register_forward_hook(self._hear)

    def _hear(self, module: nn.Module, args: Any, output: Any) -> None:
        found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if module.training:
            self._loss = found.detach() if isinstance(found, Tensor) else None

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Behind backward, once for each step of the optimizer."""
        if self._loss is None:
            raise OptionError(
                "the model's output must hold its loss; got none. Give it labels, or call "
                "monitor.step(loss) in a compute_loss of your own."
            )
        self.watched.step(self._loss)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the hooks off."""
        self._hook.remove()
        self.watched.close()
