"""How large a tensor anything makes."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Watches what torch makes in a block; `numel` is that of the largest tensor."""

    only_watches = True

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        made = (leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        self.numel = max(self.numel, *made, 0)
        return result
