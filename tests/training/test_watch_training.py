"""Lightning tells a monitor each loss while its gradients are there."""

from pathlib import Path

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import manyheads as mh
from manyheads.training.callbacks import WatchTraining


class Student(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(mh.MultiHeadAttention(16, 2), nn.Linear(16, 16))
        self.net[0].q_proj.weight.register_hook(torch.zeros_like)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss: Tensor = (self.net(batch) - batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_projection_without_gradient_is_told_and_the_hooks_go_with_the_fit(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    student = Student()
    watched = mh.doctor.monitor(student.net, every=2, tell=lambda alarm: None)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[WatchTraining(watched)],
    )  # fmt: skip
    trainer.fit(student, DataLoader(list(torch.randn(12, 5, 16)), batch_size=2))
    assert [(each.code, each.where) for each in watched.alarms] == [
        ("gradient_dead", "0.q_proj.weight")
    ]
    assert not student.net._forward_hooks
