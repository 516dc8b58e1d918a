"""``manyheads train``: a Transformer on one of our tasks, into a folder."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import Parameter

from manyheads.cli.console import say
from manyheads.errors import OptionError
from manyheads.models import TransformerConfig
from manyheads.shapes import check_count
from manyheads.tasks import Task, find_task
from manyheads.training import Recipe, Trained, load, quickest_threads, small_config
from manyheads.training import train as train_on
from manyheads.training.checkpoint import WEIGHTS


@dataclass(frozen=True)
class Shape:
    """The model's numbers; those left out are those of ``training.small_config``.

    Args:
        d_model: Width of the stream.
        num_heads: Heads of each attention.
        num_encoder_layers: Layers that read the source.
        num_decoder_layers: Layers that write the target.
        d_hidden: Width inside of the feed-forward networks.
        dropout: Share to drop in training.
    """

    d_model: int | None = None
    num_heads: int | None = None
    num_encoder_layers: int | None = None
    num_decoder_layers: int | None = None
    d_hidden: int | None = None
    dropout: float | None = None


def train(
    task: str,
    /,
    *,
    out: Path,
    resume: bool = False,
    option: list[str] | None = None,
    recipe: Annotated[Recipe | None, Parameter(name="*")] = None,
    shape: Annotated[Shape | None, Parameter(name="*")] = None,
    threads: int | None = None,
    quiet: bool = False,
) -> None:
    """Train a Transformer on a task, with a progress bar.

    Ctrl-C loses nothing that was saved; --resume goes on as if it had not been interrupted.

    Args:
        task: copy, reverse, addition or dates.
        out: The folder for the model, the logs and what --resume needs.
        resume: Go on with the run in that folder, with its task, recipe and model.
        option: An option of the task, such as max_length=20; may be repeated.
        recipe: How to train.
        shape: Of which shape the model is.
        threads: How many threads torch uses in an operation; by default the faster of one and
            torch's own number, which is measured first.
        quiet: Without the bar.
    """
    if resume:
        _refuse_beside_resume(option=option, recipe=recipe, shape=shape)
        held = _held(out, task)
        wanted, config = held.task(), held.model.config
    else:
        _refuse_to_overwrite(out)
        wanted = _new_task(task, option or [])
        config = _config(wanted, shape)
    if threads is None:
        threads = quickest_threads(wanted, config)
    torch.set_num_threads(check_count("--threads", threads))
    with resumable(f"manyheads train {task} --out {out} --resume"):
        trained = train_on(
            wanted,
            recipe,
            config,
            out=out,
            resume=out if resume else None,
            progress="none" if quiet else "bar",
        )
    steps, right = trained.report["steps"], trained.report["exact_match"]
    say(f"{steps} steps: {right:.2%} of the validation split exactly right. Saved in {out}.")
    text = wanted.split("test")[0].source
    say(f'Try: manyheads look {out} "{text}"')


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Let an interrupted training end as one, and say how to go on.

    Lightning turns Ctrl-C into ``exit(1)``, which would look like a failure.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, KeyboardInterrupt) or isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt(
                f"stopped; all checkpoints are kept. Go on with: {command}"
            ) from None
        raise


def _new_task(name: str, pairs: list[str]) -> Task:
    kind = find_task(name)
    options = dict(_pair(each) for each in pairs)
    known = asdict(kind())
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise OptionError(
            f"--option must name an option of {name}; got {unknown[0]!r}. It has "
            f"{', '.join(known)}."
        )
    for key, value in options.items():
        if type(value) is not type(known[key]):
            raise OptionError(
                f"--option {key} must be like {known[key]!r}; got {value!r}. Write {key}=VALUE "
                f"as Python would."
            )
    return kind(**options)


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--option must be NAME=VALUE; got {text!r}. Put = between the two.")
    try:
        return name.strip().replace("-", "_"), ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name.strip().replace("-", "_"), value  # a text without quotes


def _config(task: Task, shape: Shape | None) -> TransformerConfig:
    given = {} if shape is None else {k: v for k, v in asdict(shape).items() if v is not None}
    return replace(small_config(task), **given)


def _held(run: Path, name: str) -> Trained:
    held = load(run)
    if held.task_name != name:
        raise OptionError(
            f"task must be that of the run, {held.task_name}; got task={name}. Write: manyheads "
            f"train {held.task_name} --out {run} --resume"
        )
    return held


def _refuse_beside_resume(**given: object) -> None:
    for name, value in given.items():
        if value:
            raise OptionError(
                f"--resume must go on as the run began; got options of the {name} too. Leave them "
                f"out, or train anew with another --out."
            )


def _refuse_to_overwrite(out: Path) -> None:
    if (out / WEIGHTS).exists():
        raise OptionError(
            f"--out must not hold a trained model; got {out}. Add --resume to go on with it, or "
            f"name another folder."
        )
