"""Writing with a model that reads a source, then writes a target."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.layers import LayerCache
from manyheads.models.generation.prompt import Prompt
from manyheads.models.generation.writer import Writer, evaluating

if TYPE_CHECKING:
    from manyheads.models.transformer import Transformer


class EncoderDecoder(Writer):
    """An encoder-decoder in the middle of its targets; sources are read as it is made.

    Args:
        model: Reads sources and writes targets.
        source: int (batch, source_len).
        caches: One for each decoder layer; None computes everything anew.
        max_new_tokens: How many tokens it will have to write.

    Raises:
        OptionError: If learned positions do not reach so far.
    """

    def __init__(
        self,
        model: "Transformer",
        source: Tensor,
        caches: Sequence[LayerCache] | None,
        max_new_tokens: int,
    ) -> None:
        config = model.config
        if config.positions == "learned" and max_new_tokens > config.max_length:
            raise OptionError(
                f"max_new_tokens must be at most the model's max_length={config.max_length}; got "
                f"max_new_tokens={max_new_tokens}. Ask for less, or build the model with a longer "
                f"one."
            )
        with torch.no_grad(), evaluating(model):
            self.memory = model.encode(source)
        prompt = Prompt(source.new_full((source.shape[0], 1), config.bos_id))
        # A model without decoder layers has nothing to keep.
        self.layers = caches or None
        super().__init__(model, prompt, [x.text for x in caches] if caches else None)
        self.vocab_size, self.pad_id = config.target_vocab, config.pad_id
        self.never, self.stop_tokens = (config.pad_id,), (config.eos_id,)

    def logits(self, tokens: Tensor, positions: Tensor | None, last: int) -> Tensor:
        assert positions is None  # every target begins with one token
        layers = None if self.layers is None else list(self.layers)
        logits = self.model.decode(tokens, self.memory, caches=layers)  # type: ignore[operator]
        return logits[:, -last:]

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        for layer in self.layers or ():
            layer.context.reorder(index)
        self.memory = self.memory.rows(index)
