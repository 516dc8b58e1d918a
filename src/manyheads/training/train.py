"""Train a Transformer on a task, from the first step or from where a run was left."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from manyheads.models import Transformer, TransformerConfig
from manyheads.tasks import Task
from manyheads.training.checkpoint import Trained, save
from manyheads.training.extra import require_lightning
from manyheads.training.recipe import Recipe
from manyheads.training.run import RESUME, describe, settle

if TYPE_CHECKING:
    import lightning as L


def small_config(task: Task) -> TransformerConfig:
    """Give a model that learns any of our tasks on two CPU cores in a minute or two.

    It is pre-norm, and shallow: with one layer to read the source, its characters are not mixed
    so much that the decoder could look elsewhere than where the answer stands.
    """
    return TransformerConfig(
        source_vocab=len(task.source_vocabulary),
        target_vocab=len(task.target_vocabulary),
        d_model=96,
        num_heads=8,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_hidden=192,
        dropout=0.0,
        norm="pre",
    )


def train(
    task: Task,
    recipe: Recipe | None = None,
    config: TransformerConfig | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: Literal["bar", "none"] = "bar",
) -> Trained:
    """Train a Transformer on a task with Lightning's Trainer.

    Args:
        task: What to learn.
        recipe: How; None = ``Recipe()``, or that of the run that is taken up.
        config: Of which shape; None = ``small_config(task)``, or that of the run.
        out: The folder for the model (``load`` reads it), the logs (CSV; TensorBoard where it is
            installed) and the state that ``resume`` reads. None keeps nothing; a run that is
            taken up goes on in its own folder.
        resume: The folder of an earlier run. On CPU with as many threads, the weights in the end
            are those of a run that was never interrupted, bit for bit.
        progress: "bar" or "none".

    Returns:
        The model in eval mode, with its vocabularies and a report of steps and exact match on
        the validation split.

    Raises:
        CheckpointError: If there is no run to take up, or it is damaged.
        OptionError: If task, recipe or config are not those of the run.
        MissingExtraError: If Lightning is not installed.

    Example:
        >>> from manyheads.tasks import Copy
        >>> task = Copy(max_length=4, train_size=64, validation_size=8)
        >>> trained = train(task, Recipe(steps=2, warmup=1, check_every=2), progress="none")
        >>> trained.report["steps"]
        2
    """
    require_lightning()
    from manyheads.training.callbacks import KeepRandomness, SaveAfterCheck, StopWhenRight
    from manyheads.training.data import TaskData
    from manyheads.training.module import TransformerModule
    from manyheads.training.progress import progress_bar

    recipe, config = settle(task, recipe, config, resume, default=small_config(task))
    kept = out if out is not None else resume
    folder = None if kept is None else Path(kept)
    with _own_randomness(recipe.seed), _quiet_lightning():
        data = TaskData(task, recipe)
        data.setup("fit")
        model = Transformer(config)
        module = TransformerModule(model, recipe, max_new_tokens=data.max_new_tokens)
        watch = StopWhenRight(recipe.stop_at)

        def trained() -> Trained:
            return Trained(
                model,
                task.source_vocabulary,
                task.target_vocabulary,
                task.name,
                task.options(),
                data.max_new_tokens,
                {"steps": watch.step, "exact_match": watch.exact_match},
            )

        callbacks: list[L.Callback] = [KeepRandomness(), watch]
        if progress == "bar":
            callbacks.append(progress_bar(f"Training on {task.name}"))
        if folder is not None:
            run = describe(task, recipe, config)
            callbacks.append(SaveAfterCheck(folder / RESUME, run, lambda: save(folder, trained())))
        trainer = _trainer(recipe, callbacks, _loggers(folder))
        with _interruptible():
            begin = None if resume is None else Path(resume) / RESUME
            trainer.fit(module, data, ckpt_path=begin)
            if watch.step != trainer.global_step:
                trainer.validate(module, data, verbose=False)
    model.eval()
    if folder is not None:
        save(folder, trained())
    return trained()


def _trainer(recipe: Recipe, callbacks: list[L.Callback], loggers: list[Any]) -> L.Trainer:
    import lightning as L
    from lightning.pytorch.callbacks import ProgressBar

    from manyheads.training.module import LOG_EVERY
    from manyheads.training.state import SafeState

    return L.Trainer(
        accelerator="auto",
        devices=1,
        precision=recipe.precision,
        max_steps=recipe.steps,
        max_epochs=-1,
        accumulate_grad_batches=recipe.accumulate,
        gradient_clip_val=recipe.clip,
        val_check_interval=recipe.check_every * recipe.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=LOG_EVERY,
        logger=loggers,
        callbacks=callbacks,
        plugins=[SafeState()],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
    )


def _loggers(folder: Path | None) -> list[Any]:
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    if folder is None:
        return []
    loggers: list[Any] = [CSVLogger(folder, name="logs")]
    if find_spec("tensorboard") is not None:
        loggers.append(TensorBoardLogger(folder, name="tensorboard"))
    return loggers


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Draw from the seed within, and leave the caller's generators as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C reach the caller; Lightning would end the process, and be deaf to a second."""
    main = threading.current_thread() is threading.main_thread()
    answer = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as leaving:
        if isinstance(leaving.__context__, KeyboardInterrupt):
            raise leaving.__context__ from None
        raise
    finally:
        if main:
            signal.signal(signal.SIGINT, answer)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Keep Lightning's advice to itself: which devices there are, which loggers to install."""
    names = ("lightning.pytorch", "lightning.fabric")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
