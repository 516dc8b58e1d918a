"""What a run is, so that it can be taken up and no other in its place."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyheads.errors import CheckpointError, OptionError
from manyheads.models import TransformerConfig
from manyheads.tasks import Task
from manyheads.training.recipe import Recipe

RESUME = "resume.safetensors"


def describe(task: Task, recipe: Recipe, config: TransformerConfig) -> dict[str, Any]:
    """Give what decides the weights that a run ends with, as plain values."""
    return {
        "task": {"name": task.name, "options": task.options()},
        "recipe": asdict(recipe),
        "config": asdict(config),
    }


def settle(
    task: Task,
    recipe: Recipe | None,
    config: TransformerConfig | None,
    resume: str | Path | None,
    *,
    default: TransformerConfig,
) -> tuple[Recipe, TransformerConfig]:
    """Settle recipe and config: as given, as in the run that is taken up, or by default.

    Raises:
        CheckpointError: If there is no run to take up, or it does not say what it trained.
        OptionError: If what is given is not what the run was begun with.
    """
    if resume is None:
        return recipe or Recipe(), config or default
    from manyheads.training.state import read_state

    path = Path(resume) / RESUME
    held: Any = read_state(path).get("manyheads")
    try:
        recipe = recipe or Recipe(**held["recipe"])
        config = config or TransformerConfig(**held["config"])
        begun = {part: held[part] for part in ("task", "recipe", "config")}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"a run to continue must say what it trained; got path={str(path)!r} ({error!r}). "
            "Pass a folder that manyheads.training.train has written."
        ) from error
    for part, given in describe(task, recipe, config).items():
        if given != begun[part]:
            raise OptionError(
                f"{part} must be that of the run in {str(resume)!r}, {begun[part]}; got "
                f"{part}={given}. Leave it out, or train anew in another folder."
            )
    return recipe, config
