"""A model, its loss and its optimiser as Lightning wants them."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from manyheads.models import Transformer
from manyheads.tasks.vocabulary import PAD_ID
from manyheads.training.batches import Batch
from manyheads.training.loss import token_loss
from manyheads.training.recipe import Recipe
from manyheads.training.schedule import WarmupCosine

LOG_EVERY = 10  # steps


class TransformerModule(L.LightningModule):
    """Train a ``Transformer`` on batches of ids by teacher forcing.

    The loss of a step is the mean over the real tokens of all its microbatches. So each
    microbatch gives the gradient of its *sum*, and before the optimiser steps the gradients are
    divided by the count: a batch may be cut anywhere, and one without a real token adds 0.

    Args:
        model: The model.
        recipe: Learning rate, warm-up, steps, weight decay.
        max_new_tokens: The longest target in tokens, its end included.
    """

    def __init__(self, model: Transformer, recipe: Recipe, *, max_new_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.max_new_tokens = max_new_tokens
        self._total = torch.zeros(())
        self._tokens = torch.zeros((), dtype=torch.long)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits = self.model(batch.source, batch.target[:, :-1])
        total, tokens = token_loss(logits, batch.target[:, 1:], ignore_id=PAD_ID)
        self._total = self._total.to(total) + total.detach()
        self._tokens = self._tokens.to(tokens) + tokens
        # Lightning divides by this count: right for means, not for sums.
        return total * self.trainer.accumulate_grad_batches

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the sums by the real tokens; clipping comes after."""
        # Of several processes the gradients are averaged, so the counts are too.
        tokens = self.trainer.strategy.reduce(self._tokens.double(), reduce_op="mean").clamp(min=1)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(tokens)
        # Lightning would write only now and then, and take each step's time to prepare it.
        if (self.trainer.global_step + 1) % LOG_EVERY == 0:
            loss = self._total / self._tokens.clamp(min=1)
            rate = optimizer.param_groups[0]["lr"]
            self.log_dict({"loss": loss, "learning_rate": rate})
        self._total, self._tokens = self._total.new_zeros(()), self._tokens.new_zeros(())

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Write every target by generation, and count those without a mistake."""
        written = self.model.generate(batch.source, max_new_tokens=self.max_new_tokens)
        right = same_targets(written, batch.target[:, 1:])
        self.log(
            "exact_match", right.float().mean(), prog_bar=True, on_epoch=True, batch_size=len(right)
        )

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(
            self.model.parameters(),
            lr=self.recipe.learning_rate,
            betas=(0.9, 0.98),  # Vaswani et al. 2017, section 5.3
            weight_decay=self.recipe.weight_decay,
            fused=self.recipe.precision != "16-mixed",  # Lightning unscales before it clips
        )
        factor = WarmupCosine(self.recipe.warmup, self.recipe.steps)
        schedule = LambdaLR(optimizer, factor.__call__)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def same_targets(written: Tensor, target: Tensor) -> Tensor:
    """Say which rows are equal, whichever of the two is padded longer.

    Args:
        written: (batch, written_len) ids, padded behind the end.
        target: (batch, target_len) ids, padded behind the end.
    """
    short = target.shape[1] - written.shape[1]
    pad = torch.nn.functional.pad
    written = pad(written, (0, max(0, short)), value=PAD_ID)
    target = pad(target, (0, max(0, -short)), value=PAD_ID)
    return (written == target).all(1)
