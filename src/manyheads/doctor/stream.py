"""Other inputs of the kind of an example: floats, or ids of a vocabulary."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.running import run


@dataclass(frozen=True)
class Kind:
    """What an input is made of.

    Args:
        ids: The ids to draw from; None for floats.
        size: The standard deviation of floats.
    """

    ids: Tensor | None
    size: float = 1.0

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Another input of the same shape."""
        if self.ids is None:
            drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64)
            return (self.size * drawn).to(like.device, like.dtype)
        places = torch.randint(len(self.ids), like.shape, generator=generator)
        return self.ids[places].to(like.device, like.dtype)

    def scramble(self, x: Tensor, where: Tensor, generator: torch.Generator) -> Tensor:
        """An input with other tokens where (batch, length) says so, each of them another."""
        drawn = self.draw(x, generator)
        if self.ids is not None:
            following = self.ids.roll(-1)[torch.searchsorted(self.ids, drawn.cpu())]
            drawn = torch.where(drawn == x, following.to(x.device, x.dtype), drawn)
        where = where.to(x.device).reshape(*where.shape, *[1] * (x.ndim - where.ndim))
        return torch.where(where, drawn, x)


def kind_of(model: nn.Module, call: Call, x: Tensor) -> Kind:
    """What an input is made of, by what the model does with it."""
    if x.is_floating_point():
        size = float(x.detach().double().std(correction=0)) if x.numel() else 1.0
        return Kind(None, size if 1e-3 < size < 1e3 else 1.0)
    ids = torch.arange(int(x.min()), int(x.max()) + 1)
    seen: list[nn.Embedding] = []

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        read = args[0] if args else None
        if isinstance(read, Tensor) and torch.equal(read.flatten(), x.flatten()):
            assert isinstance(module, nn.Embedding)
            seen.append(module)

    hooks = [
        module.register_forward_pre_hook(look)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    ]
    try:
        run(model, call)
    finally:
        for hook in hooks:
            hook.remove()
    if seen:
        ids = torch.arange(min(each.num_embeddings for each in seen))
    special = _special(model) | {each.padding_idx for each in seen if each.padding_idx is not None}
    plain = torch.tensor([each for each in ids.tolist() if each not in special])
    return Kind(plain if len(plain) > 1 else ids)


def _special(model: nn.Module) -> set[int]:
    """Ids that a model's config gives a meaning of their own: padding, first, last, ..."""
    config = getattr(model, "config", None)
    named = vars(config) if hasattr(config, "__dict__") else {}
    return {
        value for name, value in named.items() if name.endswith("_id") and isinstance(value, int)
    }
