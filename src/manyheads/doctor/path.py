"""Where in a model something happens: the module that runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def running(model: nn.Module) -> Iterator[list[str]]:
    """Within the block, the paths of the modules that run, the innermost last."""
    path: list[str] = []

    def leave(*_: Any) -> None:
        path.pop()

    hooks = []
    for name, module in model.named_modules():
        hooks += [
            module.register_forward_pre_hook(lambda *_, name=name: path.append(name)),
            module.register_forward_hook(leave, always_call=True),
        ]
    try:
        yield path
    finally:
        for hook in hooks:
            hook.remove()
