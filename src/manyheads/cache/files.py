"""A cache in a file, whole or not there: tensors as they are, the rest as JSON, and no code."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import CacheError
from manyheads.files import write_whole

_KEY = "manyheads.cache"


def write(path: Path, kind: str, state: dict[str, Any]) -> None:
    """Write the state of a cache, whole or not at all.

    Args:
        path: Where the file shall stand.
        kind: What cache it is.
        state: Attributes by name: tensors, plain values, and objects that hold such.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    note = {"kind": kind, "state": _encode(state, "state", tensors)}
    text = json.dumps(note)
    write_whole(path, lambda file: save_file(tensors, file, metadata={_KEY: text}))


def read(
    path: Path, kind: str, parts: tuple[type, ...], device: torch.device | str
) -> dict[str, Any]:
    """The state that `write` wrote.

    Args:
        path: Where the file stands.
        kind: What cache it must be.
        parts: The classes of objects that a state of this kind may hold.
        device: Where the tensors go.

    Raises:
        CacheError: If there is no such file, or it holds something else.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            note = json.loads((file.metadata() or {})[_KEY])
            held, written = note["kind"], note["state"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise CacheError(
            f"path must be a file that a cache was saved in; got path={str(path)!r} "
            f"({error!r}). Save one with cache.save(path)."
        ) from error
    if held != kind:
        raise CacheError(
            f"path must hold a {kind}; got path={str(path)!r} with a {held}. Load it with "
            f"{held}.load(path)."
        )
    known = {part.__name__: part for part in parts}
    try:
        state: dict[str, Any] = _decode(written, tensors, known, torch.device(device))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise CacheError(
            f"path must hold a whole {kind}; got path={str(path)!r}, in which something is missing "
            f"({error!r}). Save it again."
        ) from error
    return state


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return ["tensor", name]
    if isinstance(value, torch.device):
        return ["device"]
    if type(value) in (list, tuple):
        items = [_encode(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return ["list" if type(value) is list else "tuple", items]
    inner = value if isinstance(value, dict) else _attributes(value)
    named = {key: _encode(item, f"{name}.{key}", tensors) for key, item in inner.items()}
    return ["dict" if inner is value else type(value).__name__, named]


def _decode(
    value: Any, tensors: dict[str, Tensor], parts: dict[str, type], device: torch.device
) -> Any:
    if not isinstance(value, list):
        return value
    kind = value[0]
    if kind == "device":
        return device
    if kind == "tensor":
        return tensors[value[1]]
    if kind in ("list", "tuple"):
        items = [_decode(item, tensors, parts, device) for item in value[1]]
        return items if kind == "list" else tuple(items)
    inner = {key: _decode(item, tensors, parts, device) for key, item in value[1].items()}
    if kind == "dict":
        return inner
    if issubclass(parts[kind], tuple):
        return parts[kind](**inner)
    # Past the constructor, which may take other things than it keeps.
    made: Any = object.__new__(parts[kind])
    vars(made).update(inner)
    return made


def _attributes(value: Any) -> dict[str, Any]:
    return dict(value._asdict()) if hasattr(value, "_asdict") else vars(value)
