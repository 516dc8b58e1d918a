"""Hugging Face's Trainer tells a monitor each loss while its gradients are there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", reason="until transformers is installed")

import manyheads as mh  # noqa: E402
from manyheads.errors import OptionError  # noqa: E402
from manyheads.interop.huggingface.training import WatchTrainer  # noqa: E402


def writer() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def spoiled() -> Any:
    model = writer()
    model.transformer.h[0].attn.c_attn.weight.register_hook(torch.zeros_like)
    return model


def texts(count: int) -> list[dict[str, Tensor]]:
    rows = torch.randint(0, 30, (count, 9), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in rows]


def by_hand(model: Any, callback: Any, rows: list[dict[str, Tensor]]) -> None:
    """What a Trainer does around a callback, where accelerate is not installed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    arguments = transformers.TrainerState(), transformers.TrainerControl()
    for row in rows:
        loss = model(**{name: value[None] for name, value in row.items()}).loss
        loss.backward()
        callback.on_pre_optimizer_step(None, *arguments, model=model, optimizer=optimizer)
        optimizer.step()
        optimizer.zero_grad()
    callback.on_train_end(None, *arguments, model=model)


def by_trainer(model: Any, callback: Any, rows: list[dict[str, Tensor]], folder: Path) -> None:
    pytest.importorskip("accelerate", reason="until accelerate, which Trainer needs, is installed")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=1, num_train_epochs=1, use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, callbacks=[callback]
    ).train()


@pytest.mark.parametrize("run", ["by hand", "by trainer"])
@pytest.mark.parametrize(
    ("build", "told"), [(writer, []), (spoiled, ["transformer.h.0.attn.c_attn.weight"])]
)
def test_what_gets_no_gradient_is_told_and_the_hooks_go_with_the_run(
    run: str, build: Any, told: list[str], tmp_path: Path
) -> None:
    model = build()
    watched = mh.doctor.monitor(model, every=2, tell=lambda alarm: None)
    callback = WatchTrainer(watched)
    if run == "by hand":
        by_hand(model.train(), callback, texts(6))
    else:
        by_trainer(model, callback, texts(6), tmp_path)
    assert [each.where for each in watched.alarms if each.code == "gradient_dead"] == told
    assert len(watched.alarms) == len(told)
    assert {each.where for each in watched.vitals} == {"transformer.h.0.attn"}
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_a_model_that_answers_no_loss_is_refused() -> None:
    model = nn.Linear(3, 3)
    callback = WatchTrainer(mh.doctor.monitor(model))
    model(torch.randn(2, 3))
    with pytest.raises(OptionError, match=r"output must hold its loss; got none. Give it labels"):
        callback.on_pre_optimizer_step(
            None, transformers.TrainerState(), transformers.TrainerControl()
        )
