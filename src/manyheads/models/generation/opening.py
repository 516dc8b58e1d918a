"""A writer for whatever model there is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from manyheads.cache import Cache
from manyheads.errors import CacheError, OptionError
from manyheads.layers import LayerCache
from manyheads.models.generation.decoder_only import DecoderOnly, Kind, LanguageModel
from manyheads.models.generation.encoder_decoder import EncoderDecoder
from manyheads.models.generation.prompt import Prompt, Tokens
from manyheads.models.generation.writer import Writer

if TYPE_CHECKING:
    from manyheads.models.transformer import Transformer

Keeping = Kind | Sequence[Cache] | None
"""How keys and values are kept: a kind of cache, caches that hold what goes before, or not."""


def open_writer(model: nn.Module, tokens: Tokens, cache: Keeping, max_new_tokens: int) -> Writer:
    """A model before its prompts, or before its sources if it is an encoder-decoder.

    Raises:
        OptionError: If it is no model that writes, or the text would be too long.
        CacheError: If caches are not those of the model's layers and rows.
        ShapeError: If a prompt is empty.
    """
    from manyheads.models.transformer import Transformer

    if isinstance(model, Transformer):
        return EncoderDecoder(model, _sources(model, tokens), _layers(model, cache), max_new_tokens)
    if not isinstance(model, LanguageModel):
        raise OptionError(
            f"model must be a Transformer or a model of text; got {type(model).__name__}. It needs "
            f"config.vocab_size, config.max_length, new_caches(kind), and to be called as "
            f"model(tokens, positions=, caches=, last_only=)."
        )
    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    prompt = Prompt.of(tokens, model.config.vocab_size, device)
    caches = model.new_caches(cache) if callable(cache) else cache
    if caches is not None:
        _check_caches(caches)
    if caches is not None and len(caches) != len(model.new_caches()):
        raise CacheError(
            f"caches must be one for each of {len(model.new_caches())} layers; got {len(caches)}. "
            f"Take them from model.new_caches()."
        )
    return DecoderOnly(model, prompt, caches, max_new_tokens)


def _check_caches(caches: object) -> None:
    held = isinstance(caches, Sequence) and all(isinstance(cache, Cache) for cache in caches)
    if not held:
        got = [type(x).__name__ for x in caches] if isinstance(caches, list) else caches
        raise CacheError(
            f"cache must be a kind of cache, or a cache for each layer; got cache={got!r}. Give "
            f"GrowingCache itself, without brackets, or model.new_caches()."
        )


def _sources(model: "Transformer", tokens: Tokens) -> Tensor:
    if isinstance(tokens, Tensor):
        return tokens
    device = model.output.weight.device
    rows = [torch.as_tensor(row, device=device) for row in tokens]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.config.pad_id)


def _layers(model: "Transformer", cache: Keeping) -> list[LayerCache] | None:
    if cache is None:
        return None
    if not callable(cache):
        raise CacheError(
            "cache must be a kind of cache for an encoder-decoder; got caches. Give "
            "cache=GrowingCache; every target begins anew."
        )
    return model.new_caches(cache)
