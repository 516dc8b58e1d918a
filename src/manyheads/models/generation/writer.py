"""What generation needs of a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.cache import Cache
from manyheads.models.generation.prompt import Prompt


class Writer(ABC):
    """A model in the middle of its texts: it reads tokens, tells what may follow, can go back.

    Greedy, sampled, beam and speculative generation know a model only so, and none of them knows
    what kind of model or cache there is. Nothing is dropped while it reads, and the model's mode
    is as it was whenever it does not.

    Args:
        model: What computes.
        prompt: What it reads first.
        caches: One for each layer; None computes everything anew in each step.
    """

    vocab_size: int
    pad_id = -1
    """What stands for no token behind the end of a row."""
    never: tuple[int, ...] = ()
    """Tokens that are never written."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens with which the model itself ends a text."""

    def __init__(self, model: nn.Module, prompt: Prompt, caches: Sequence[Cache] | None) -> None:
        self.model, self.prompt, self.caches = model, prompt, caches
        self._modules = list(model.modules())  # walking the model takes a tenth of a step
        self._read = prompt.tokens[:, :0]  # all that was read, where nothing is cached
        self._places: Tensor | None = None

    @abstractmethod
    def logits(
        self,
        tokens: Int[Tensor, "batch length"],
        positions: Int[Tensor, "batch length"] | None,
        last: int,
    ) -> Float[Tensor, "batch last vocab"]:
        """What the model, with its caches, says of the token after each of the ``last`` ones."""

    def begin(self) -> Float[Tensor, "batch vocab"]:
        """Read the prompt; what may follow it."""
        first = torch.zeros(1, 1, dtype=torch.long, device=self.prompt.tokens.device)
        if self.caches:
            follows = self.caches[0].follow(1, first.device).positions()
            first = follows.view(-1, 1)
        return self._extend(self.prompt.tokens, self.prompt.positions(first), 1)[:, -1]

    def read(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab"]:
        """Read more tokens; what may follow each."""
        return self._extend(tokens, None, tokens.shape[1])

    @torch.no_grad()
    def _extend(self, tokens: Tensor, positions: Tensor | None, last: int) -> Tensor:
        with evaluating(self.model, self._modules):
            if self.caches is not None:
                return self.logits(tokens, positions, last)
            if self._places is not None:
                ends = self._places[:, -1:]
                positions = ends + 1 + torch.arange(tokens.shape[1], device=ends.device)
                positions = torch.cat((self._places, positions), dim=1)
            self._read, self._places = torch.cat((self._read, tokens), dim=1), positions
            return self.logits(self._read, self._places, last)

    def rollback(self, count: int) -> None:
        """Forget the last tokens that were read."""
        if not count:
            return
        for cache in self.caches or ():
            cache.rollback(count)
        if self.caches is None:
            self._read = self._read[:, :-count]
            self._places = None if self._places is None else self._places[:, :-count]

    def reorder(self, index: Int[Tensor, " rows"]) -> None:
        """Let row i continue what row ``index[i]`` was."""
        for cache in self.caches or ():
            cache.reorder(index)
        if self.caches is None:
            self._read = self._read[index]
            self._places = None if self._places is None else self._places[index]


@contextmanager
def evaluating(model: nn.Module, modules: Sequence[nn.Module] | None = None) -> Iterator[None]:
    """Nothing is dropped inside; afterwards every module is in the mode that it was in.

    Args:
        model: What computes.
        modules: All that it consists of, for those who know them.
    """
    modules = list(model.modules()) if modules is None else modules
    training = [module for module in modules if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
