"""The encoder-decoder Transformer of 2017."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import DTypeError, OptionError, ShapeError
from manyheads.layers import DecoderLayer, EncoderLayer, LayerCache
from manyheads.layers.feed_forward import Activation
from manyheads.layers.residual import Norm
from manyheads.layers.stream import settle_cross, settle_self
from manyheads.masks import Causal, Padding
from manyheads.positions import Learned, Rotary, Sinusoidal
from manyheads.shapes import check_count, check_tensor


@dataclass(frozen=True)
class TransformerConfig:
    """The numbers of a `Transformer`; the defaults are the base model of the paper.

    Args:
        source_vocab: How many kinds of source tokens there are.
        target_vocab: How many kinds of target tokens there are.
        d_model: Width of the stream.
        num_heads: Query heads of each attention.
        num_kv_heads: Key and value heads; None = `num_heads`.
        num_encoder_layers: How many layers read the source.
        num_decoder_layers: How many layers write the target.
        d_hidden: Width inside of the feed-forward networks.
        dropout: Share to drop in training, of embeddings and of what sublayers add.
        norm: "post", as in the paper, or "pre".
        activation: Of the feed-forward networks.
        positions: How tokens know where they are.
        max_length: The longest sequence, for learned positions; others need no maximum.
        tied: Which matrices are one: the target's embedding and the output's ("target"), those and
            the source's ("all", as in the paper), or none.
        pad_id: The token that stands for no token.
        bos_id: The token that every target begins with.
        eos_id: The token that every target ends with.

    Raises:
        OptionError: If a number is out of range, or two do not go together.

    Example:
        >>> import manyheads as mh
        >>> mh.TransformerConfig(source_vocab=8000, target_vocab=8000).d_model
        512
    """

    source_vocab: int
    target_vocab: int
    d_model: int = 512
    num_heads: int = 8
    num_kv_heads: int | None = None
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_hidden: int = 2048
    dropout: float = 0.1
    norm: Norm = "post"
    activation: Activation = "relu"
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_length: int = 512
    tied: Literal["none", "target", "all"] = "target"
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        for name in ("source_vocab", "target_vocab", "d_model", "num_heads", "d_hidden"):
            check_count(name, getattr(self, name))
        for name in ("num_encoder_layers", "num_decoder_layers"):
            check_count(name, getattr(self, name), least=0)
        if self.positions not in ("sinusoidal", "learned", "rotary"):
            raise OptionError(
                f"positions must be 'sinusoidal', 'learned' or 'rotary'; got "
                f"positions={self.positions!r}. The paper of 2017 uses 'sinusoidal'."
            )
        if self.tied not in ("none", "target", "all"):
            raise OptionError(
                f"tied must be 'none', 'target' or 'all'; got tied={self.tied!r}. The paper of "
                f"2017 ties all."
            )
        if self.tied == "all" and self.source_vocab != self.target_vocab:
            raise OptionError(
                f"tied='all' must have one vocabulary; got source_vocab={self.source_vocab}, "
                f"target_vocab={self.target_vocab}. Use tied='target'."
            )
        for name in ("pad_id", "bos_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.target_vocab:
                raise OptionError(
                    f"{name} must be below target_vocab={self.target_vocab}; got "
                    f"{name}={getattr(self, name)}. Special tokens are part of the vocabulary."
                )


class Embedding(nn.Module):
    """Tokens as vectors times sqrt(d_model), and where they stand."""

    def __init__(
        self, tokens: nn.Embedding, config: TransformerConfig, place: dict[str, Any]
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model)
        self.positions: nn.Module | None = None
        if config.positions == "sinusoidal":
            self.positions = Sinusoidal(config.d_model)
        elif config.positions == "learned":
            self.positions = Learned(config.max_length, config.d_model, **place)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: Tensor, positions: int | None = None) -> Tensor:
        x = self.tokens(ids) * self.scale
        if self.positions is not None:
            x = self.positions(x, positions)
        return self.dropout(x)


@dataclass(frozen=True)
class Memory:
    """What the decoder reads of a source.

    Args:
        context: (batch, source_len, d_model).
        mask: Which of its tokens are there.
    """

    context: Tensor
    mask: Padding


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
        for embedding in (source, target):
            nn.init.normal_(embedding.weight, std=config.d_model**-0.5)
        self.source_embedding = Embedding(source, config, place)
        self.target_embedding = Embedding(target, config, place)
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
        final = nn.LayerNorm if config.norm == "pre" else _Nothing
        self.encoder_norm = final(config.d_model, **place)
        self.decoder_norm = final(config.d_model, **place)
        self.output = nn.Linear(config.d_model, config.target_vocab, bias=False, **place)
        if config.tied != "none":
            self.output.weight = target.weight
        else:
            nn.init.xavier_uniform_(self.output.weight)

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
        _check_ids("source", source, self.config.source_vocab)
        mask = Padding(source != self.config.pad_id)
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
        _check_ids("target", target, self.config.target_vocab)
        mask = Causal() & Padding(target != self.config.pad_id)
        text = caches[0].text if caches else None
        x = self.target_embedding(target, 0 if text is None else text.length)
        x, bound = settle_self(x, mask, None, text)
        x, context, outside = settle_cross(x, memory.context, memory.mask)
        for index, layer in enumerate(self.decoder):
            x = layer(
                x,
                context,
                mask=bound,
                context_mask=outside,
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

    def new_caches(self) -> list[LayerCache]:
        """An empty cache for each decoder layer."""
        return [LayerCache.new() for _ in self.decoder]

    def generate(
        self,
        source: Int[Tensor, "batch source_len"],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        cached: bool = True,
    ) -> Int[Tensor, "batch length"]:
        """Write a target for each source; see `manyheads.models.generation.generate`."""
        from manyheads.models.generation import generate

        return generate(
            self,
            source,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            generator=generator,
            cached=cached,
        )

    def _attentions(self) -> Iterator[str]:
        for index in range(len(self.encoder)):
            yield f"encoder.{index}"
        for index in range(len(self.decoder)):
            yield f"decoder.{index}.self"
            yield f"decoder.{index}.cross"


class _Nothing(nn.Identity):
    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


def _rotary(config: TransformerConfig) -> Rotary | None:
    if config.positions != "rotary" or config.d_model % config.num_heads:
        return None
    return Rotary(config.d_model // config.num_heads)


def _check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    if check_tensor(name, ids).dtype not in (torch.int32, torch.int64):
        raise DTypeError(
            f"{name} must be int32 or int64 token ids; got {name}={ids.dtype}. Encode the text "
            f"with a vocabulary first."
        )
    if ids.ndim != 2:
        raise ShapeError(
            f"{name} must be (batch, length); got shape {tuple(ids.shape)}. For one sequence write "
            f"{name}[None]."
        )
    cheap = ids.device.type == "cpu" and not torch.compiler.is_compiling()
    if cheap and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise OptionError(
            f"{name} must hold token ids from 0 to {vocabulary - 1}; got {int(ids.min())} to "
            f"{int(ids.max())}. Is it encoded with the model's own vocabulary?"
        )
