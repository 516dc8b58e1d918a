"""What ``file.py:name`` means: a model, and an example of its input."""

import ast
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.cli.folder import Example, load_folder
from manyheads.doctor import Facts
from manyheads.errors import ExamineError, nearest

SHAPE = re.compile(r"([1-9]\d*(?:x[1-9]\d*)+)(?::([1-9]\d*))?")


def find(target: str) -> tuple[nn.Module, Example | None, ModuleType]:
    """What `load` gives, for a folder with a trained model too, which holds no names."""
    if Path(target).is_dir():
        return *load_folder(Path(target)), ModuleType("folder")
    return load(target)


def load(target: str) -> tuple[nn.Module, Example | None, ModuleType]:
    """The model that a target names, the example beside it if there is one, and their file.

    Args:
        target: ``file.py:name`` or ``package.module:name``. The name is a module, a factory of
            one, or either with an example: (model, args) or (model, args, kwargs).

    Raises:
        ExamineError: If it cannot be loaded, or is no model.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ExamineError(
            f"target must be file.py:name or package.module:name; got target={target!r}. Name a "
            f"module or a factory of one after the colon."
        )
    source = _import(place, target)
    if not hasattr(source, name):
        raise ExamineError(
            f"target must name something in its file; got {name!r}, which {place} does not have. "
            f"It has {', '.join(each for each in vars(source) if not each.startswith('_'))}."
        )
    made = _made(getattr(source, name), target)
    model, *example = made if isinstance(made, tuple) else (made,)
    if not isinstance(model, nn.Module):
        raise ExamineError(
            f"target must be a torch.nn.Module or a factory of one; got {name}="
            f"{type(model).__name__}. A factory takes no arguments."
        )
    return model, _example(*example) if example else None, source


def inputs_of(texts: list[str], source: ModuleType) -> Example:
    """An example input from words.

    Args:
        texts: For each argument ``2x13x24`` (random floats), ``2x13:40`` (random ids below 40), or
            a name in the target's file; ``argument=`` before it passes it by name.
        source: The target's file.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        name, _, what = text.rpartition("=")
        value = _input(what, source)
        if name:
            kwargs[name] = value
        elif isinstance(value, dict):
            kwargs |= value
        elif isinstance(value, tuple):
            args += value
        else:
            args.append(value)
    return tuple(args), kwargs


def guessed(model: nn.Module) -> Example:
    """An example input by the model's first layer: ids if it embeds, else floats of its width."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return (torch.randint(module.num_embeddings, (2, 11)),), {}
        if isinstance(module, nn.MultiheadAttention):
            return (torch.randn(2, 11, module.embed_dim),), {}
        if isinstance(module, nn.Linear):
            return (torch.randn(2, 11, module.in_features),), {}
    raise ExamineError(
        "inputs must be given where the model's first layer does not tell them; got inputs=None. "
        "Say --inputs 2x13x24 for floats, 2x13:40 for ids below 40."
    )


def facts_of(texts: list[str]) -> Facts:
    """Facts from ``name=value``; a value is Python, a word, or a reference's target."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in Facts.__dataclass_fields__ or name == "cache":
            known = ", ".join(each for each in Facts.__dataclass_fields__ if each != "cache")
            cure = nearest(name, Facts.__dataclass_fields__, "Write --fact causal=True.")
            raise ExamineError(
                f"--fact must be name=value with a name of {known}; got --fact={text!r}. {cure}"
            )
        if name == "reference":
            found[name] = find(value)[0]
            continue
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return Facts(**found)


def _import(place: str, target: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # so that its classes can be copied and pickled
        sys.path.insert(0, str(path.resolve().parent))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.pop(0)
        return module
    except Exception as error:
        raise ExamineError(
            f"target must be a file that can be run; got {target!r}, which raised "
            f"{type(error).__name__}: {error}. Mend that first."
        ) from error


def _made(thing: Any, target: str) -> Any:
    if isinstance(thing, nn.Module | tuple) or not callable(thing):
        return thing
    try:
        return thing()
    except Exception as error:
        raise ExamineError(
            f"target must be a factory that works without arguments; got {target!r}, which raised "
            f"{type(error).__name__}: {error}. Wrap it in a function that gives it what it needs."
        ) from error


def _example(args: Any = (), kwargs: Any = None) -> Example:
    if isinstance(args, dict):
        return (), args
    return (args,) if isinstance(args, Tensor) else tuple(args), dict(kwargs or {})


def _input(text: str, source: ModuleType) -> Any:
    if shape := SHAPE.fullmatch(text):
        sizes = [int(each) for each in shape[1].split("x")]
        try:
            return torch.randint(int(shape[2]), sizes) if shape[2] else torch.randn(sizes)
        except RuntimeError as error:
            raise ExamineError(
                f"--inputs must fit into memory; got --inputs={text!r}. Give smaller sizes."
            ) from error
    if not hasattr(source, text):
        raise ExamineError(
            f"--inputs must be a shape such as 2x13x24, ids such as 2x13:40, or a name in the "
            f"target's file; got --inputs={text!r}. Give one for each argument."
        )
    found = getattr(source, text)
    return found() if callable(found) and not isinstance(found, Tensor) else found
