"""Writing with a model that reads nothing but its own text."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from manyheads.cache import Cache
from manyheads.errors import CacheError, OptionError
from manyheads.models.generation.prompt import Prompt
from manyheads.models.generation.writer import Writer
from manyheads.models.quick import quick_form

Kind = Callable[[], Cache]
"""What makes an empty cache."""


@runtime_checkable
class LanguageModel(Protocol):
    """A model of text: tokens in, logits of the token after each out.

    `config.vocab_size` counts its tokens; `config.max_length` is how long its texts may be, None
    if there is no limit.
    """

    config: Any

    def __call__(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits (batch, length, vocab), or (batch, 1, vocab) of the last token alone."""

    def new_caches(self, kind: Kind = ...) -> list[Cache]:
        """An empty cache for each layer."""


class DecoderOnly(Writer):
    """A decoder-only model in the middle of its texts.

    Args:
        model: Computes logits of tokens at positions.
        prompt: What it reads first.
        caches: One for each layer, perhaps filled; None computes everything anew.
        max_new_tokens: How many tokens it will have to write.

    Raises:
        OptionError: If the text would be longer than the model or a cache allows.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: Prompt,
        caches: Sequence[Cache] | None,
        max_new_tokens: int,
    ) -> None:
        assert isinstance(model, nn.Module)
        super().__init__(model, prompt, caches)
        self.vocab_size = model.config.vocab_size
        self.quick = quick_form(model)
        self._check_rows()
        self._check_reach(model.config.max_length, max_new_tokens)

    def logits(self, tokens: Tensor, positions: Tensor | None, last: int) -> Tensor:
        # After the prompt each step reads a token or a few, and calls cost more than products.
        quick = self.quick if positions is None and self.caches else None
        if quick is not None and quick.serves(tokens, self.caches or ()):
            return quick(tokens, self.caches or ())[:, -last:]
        options = {"positions": positions, "caches": self.caches, "last_only": last == 1}
        return self.model(tokens, **options)[:, -last:]

    def _check_rows(self) -> None:
        batch = len(self.prompt.tokens)
        for cache in self.caches or ():
            if cache.length and cache.read().batch != batch:
                raise CacheError(
                    f"caches must hold the {batch} rows of tokens; got {cache.read().batch}. Give "
                    f"each row that goes on its next tokens, or reorder the caches."
                )

    def _check_reach(self, max_length: int | None, max_new_tokens: int) -> None:
        # The last token is written and never read.
        length = self.prompt.tokens.shape[1] + max(max_new_tokens - 1, 0)
        last = 0
        if self.caches and self.caches[0].length:
            last = int(self.caches[0].positions.max()) + 1
        if max_length is not None and last + length > max_length:
            _refuse_length("model's max_length", max_length, last + length, max_new_tokens)
        for cache in self.caches or ():
            if cache.room is not None and cache.length + length > cache.room:
                _refuse_length("cache's room", cache.room, cache.length + length, max_new_tokens)


def _refuse_length(what: str, limit: int, length: int, max_new_tokens: int) -> None:
    raise OptionError(
        f"a text must fit the {what}={limit}; got {length} tokens to read, with max_new_tokens="
        f"{max_new_tokens}. Shorten the prompt, ask for less, or make more room."
    )
