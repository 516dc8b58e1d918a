"""The encoder-decoder Transformer of 2017."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.cache import Cache, GrowingCache
from manyheads.errors import CacheError, ShapeError
from manyheads.layers import DecoderLayer, EncoderLayer, LayerCache
from manyheads.layers.stream import settle_cross, settle_self
from manyheads.masks import Causal, Padding
from manyheads.models.config import TransformerConfig
from manyheads.models.embedding import Embedding, check_ids, positions_of
from manyheads.models.generation import Sampling, generate
from manyheads.positions import Learned, Rotary
from manyheads.shapes import (
    values_are_cheap,
)


@dataclass(frozen=True)
class Memory:
    """What the decoder reads of a source.

    Args:
        context: (batch, source_len, d_model).
        mask: Which of its tokens are there; None if all are.
    """

    context: Tensor
    mask: Padding | None

    def rows(self, index: Int[Tensor, " rows"]) -> "Memory":
        """What is read in the rows of ``index``."""
        keep = None if self.mask is None else self.mask.keep
        return Memory(self.context[index], None if keep is None else Padding(keep[index]))


class Transformer(nn.Module):
    """Read a source, write a target, one token after another.

    Args:
        config: The numbers.
        device: Where the weights go.
        dtype: Of what type they are.

    Source:
        Vaswani et al. 2017 (arXiv:1706.03762).

    Example:
        >>> import torch, manyheads as mh
        >>> config = mh.TransformerConfig(20, 20, d_model=32, num_heads=4, d_hidden=64)
        >>> model = mh.Transformer(config).eval()
        >>> source = torch.tensor([[5, 6, 7, 2, 0]])
        >>> model(source, torch.tensor([[1, 5, 6]])).shape
        torch.Size([1, 3, 20])
        >>> model.generate(source, max_new_tokens=4).shape[1] <= 4
        True
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        source = nn.Embedding(config.source_vocab, config.d_model, **place)
        target = source
        if config.tied != "all":
            target = nn.Embedding(config.target_vocab, config.d_model, **place)
        self.source_embedding = Embedding(source, positions_of(config, place), config.dropout)
        self.target_embedding = Embedding(target, positions_of(config, place), config.dropout)
        options: dict[str, Any] = {
            "num_kv_heads": config.num_kv_heads,
            "dropout": config.dropout,
            "norm": config.norm,
            "activation": config.activation,
            "rotary": _rotary(config),
            **place,
        }
        widths = (config.d_model, config.num_heads, config.d_hidden)
        self.encoder = nn.ModuleList(
            EncoderLayer(*widths, **options) for _ in range(config.num_encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(*widths, **options) for _ in range(config.num_decoder_layers)
        )
        # A stream that is normalised only inside of its sublayers needs one norm at its end.
        pre = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(config.d_model, **place) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.d_model, **place) if pre else nn.Identity()
        self.output = nn.Linear(config.d_model, config.target_vocab, bias=False, **place)
        self._tie()
        self._begin_vocabulary()
        self.register_load_state_dict_post_hook(_tie_again)

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        for part in self.modules():
            if isinstance(part, EncoderLayer | DecoderLayer | Learned | nn.LayerNorm):
                part.reset_parameters()
        self._begin_vocabulary()

    def _begin_vocabulary(self) -> None:
        std = self.config.d_model**-0.5
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.tokens.weight, std=std)
        if self.config.tied == "none":
            nn.init.xavier_uniform_(self.output.weight)

    def _tie(self) -> None:
        if self.config.tied != "none":
            self.output.weight = self.target_embedding.tokens.weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Transformer":
        super()._apply(fn, recurse)
        self._tie()  # leaving the meta device makes every name a parameter of its own
        return self

    def forward(
        self, source: Int[Tensor, "batch source_len"], target: Int[Tensor, "batch target_len"]
    ) -> Float[Tensor, "batch target_len target_vocab"]:
        """Logits of each token that follows one of the target.

        Args:
            source: Token ids; `pad_id` stands for no token.
            target: Token ids, beginning with `bos_id`; padded at the end.
        """
        return self.decode(target, self.encode(source))

    def encode(
        self, source: Int[Tensor, "batch source_len"], weights_into: list[Tensor] | None = None
    ) -> Memory:
        """Read a source once, for any number of steps of the decoder."""
        check_ids("source", source, self.config.source_vocab)
        mask = self._padding(source)
        # Settled once for all layers, so that none of them works it out again.
        x, bound = settle_self(self.source_embedding(source), mask, None, None)
        for layer in self.encoder:
            x = layer(x, mask=bound, weights_into=weights_into)
        return Memory(self.encoder_norm(x), mask)

    def decode(
        self,
        target: Int[Tensor, "batch target_len"],
        memory: Memory,
        *,
        caches: list[LayerCache] | None = None,
        weights_into: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch target_len target_vocab"]:
        """Logits of each token that follows one of the target.

        Args:
            target: Token ids; with caches, the new ones only.
            memory: What `encode` gave.
            caches: From `new_caches`; they hold what went before.
            weights_into: Receives each layer's self-attention and cross-attention weights.
        """
        check_ids("target", target, self.config.target_vocab)
        self._check_past(target, memory, caches)
        text, outside = caches[0] if caches else (None, None)
        follows = None if text is None else text.follow(target.shape[1], target.device).position
        padding = self._padding(target)
        mask = Causal() if padding is None else Causal() & padding
        # Settled once for all layers, and of the context only what no cache holds.
        x, bound = settle_self(self.target_embedding(target, follows), mask, None, text)
        if outside is None or outside.wants_keys:
            x, context, seen = settle_cross(x, memory.context, memory.mask)
        else:
            x, context, seen = settle_cross(x, None, None, held=outside.tokens)
        for index, layer in enumerate(self.decoder):
            x = layer(
                x,
                context,
                mask=bound,
                context_mask=seen,
                cache=caches[index] if caches else None,
                weights_into=weights_into,
            )
        return self.output(self.decoder_norm(x))

    def with_weights(
        self, source: Int[Tensor, "batch source_len"], target: Int[Tensor, "batch target_len"]
    ) -> tuple[Float[Tensor, "batch target_len target_vocab"], dict[str, Tensor]]:
        """Logits as from a call, and every head's weights by the name of its attention.

        Returns:
            Logits, and (batch, heads, q_len, kv_len) under "encoder.0", "decoder.0.self",
            "decoder.0.cross" and so on.
        """
        seen: list[Tensor] = []
        logits = self.decode(target, self.encode(source, seen), weights_into=seen)
        return logits, dict(zip(self._attentions(), seen, strict=True))

    def new_caches(self, kind: Callable[[], Cache] = GrowingCache) -> list[LayerCache]:
        """An empty cache for each decoder layer, of a kind for its text."""
        return [LayerCache.new(kind) for _ in self.decoder]

    def generate(
        self,
        source: Int[Tensor, "batch source_len"],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        cached: bool = True,
    ) -> Int[Tensor, "batch length"]:
        """Write a target for each source; `manyheads.generate` can do more.

        Args:
            source: Token ids.
            max_new_tokens: The longest target, in tokens.
            temperature: 0 takes the likeliest token; above, draws by softmax(logits / temperature).
            generator: Where draws come from; None means torch's own.
            cached: Whether keys and values are kept between steps; the text is the same.

        Returns:
            Token ids without the first `bos_id`; `pad_id` behind each row's `eos_id`.
        """
        return generate(
            self,
            source,
            max_new_tokens=max_new_tokens,
            sampling=Sampling(temperature),
            generator=generator,
            cache=GrowingCache if cached else None,
        )

    def _padding(self, ids: Tensor) -> Padding | None:
        keep = ids != self.config.pad_id
        # Where all tokens are there, and it costs nothing to know, the faster kernels serve.
        return None if values_are_cheap(keep) and keep.all() else Padding(keep)

    def _check_past(self, target: Tensor, memory: Memory, caches: list[LayerCache] | None) -> None:
        if target.shape[0] != memory.context.shape[0]:
            raise ShapeError(
                f"target and memory must have one batch size; got target={target.shape[0]}, "
                f"memory={memory.context.shape[0]}. Encode one source for each target."
            )
        if caches is not None and len(caches) != len(self.decoder):
            raise CacheError(
                f"caches must be one for each of {len(self.decoder)} decoder layers; got "
                f"{len(caches)}. Take them from new_caches()."
            )

    def _attentions(self) -> Iterator[str]:
        for index in range(len(self.encoder)):
            yield f"encoder.{index}"
        for index in range(len(self.decoder)):
            yield f"decoder.{index}.self"
            yield f"decoder.{index}.cross"


def _tie_again(model: Transformer, _: object) -> None:
    model._tie()


def _rotary(config: TransformerConfig) -> Rotary | None:
    if config.positions != "rotary" or config.d_model % config.num_heads:
        return None
    return Rotary(config.d_model // config.num_heads)
