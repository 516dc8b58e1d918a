"""A decoder-only model: GPT-2, Llama and their kin, by the numbers of a config."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.cache import Cache, GrowingCache
from manyheads.errors import CacheError, OptionError, PositionError
from manyheads.layers import Block, FeedForward, MultiHeadAttention, Residual
from manyheads.layers.checks import checked_head_dim
from manyheads.layers.norm import norm_of
from manyheads.layers.stream import settle_self
from manyheads.masks import Bound, Causal, Mask, Window, as_mask
from manyheads.models.decoder_config import DecoderConfig
from manyheads.models.embedding import Embedding, check_ids
from manyheads.positions import Learned, Rotary
from manyheads.shapes import Positions, check_positions, values_are_cheap


class Decoder(nn.Module):
    """Read a text and tell, at each token, which one may follow.

    Nobody sees the future: the mask is `Causal()`, and a `Window` where the config has one.

    Args:
        config: The numbers.
        device: Where the weights go; on "meta" they take no memory.
        dtype: Of what type they are.

    Source:
        Radford et al. 2019 (GPT-2); Touvron et al. 2023 (Llama, arXiv:2302.13971).

    Example:
        >>> import torch, manyheads as mh
        >>> model = mh.Decoder(mh.DecoderConfig.preset("tiny")).eval()
        >>> tokens = torch.tensor([[5, 6, 7, 8]])
        >>> logits = model(tokens)
        >>> logits.shape
        torch.Size([1, 4, 64])
        >>> caches = model.new_caches()
        >>> parts = [model(tokens[:, :3], caches=caches), model(tokens[:, 3:], caches=caches)]
        >>> torch.allclose(torch.cat(parts, dim=1), logits, atol=1e-6)
        True
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(config, DecoderConfig):
            raise OptionError(
                f"config must be a DecoderConfig; got config={config!r}. A published size is "
                f"DecoderConfig.preset('gpt2')."
            )
        super().__init__()
        self.config = config
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        # Filled once, below: drawn by torch on the meta device, they would load its compiler.
        empty = torch.empty(config.vocab_size, config.d_model, **place)
        tokens = nn.Embedding.from_pretrained(empty, freeze=False)
        learned = None
        if config.positions == "learned":
            assert config.max_length is not None
            learned = Learned(config.max_length, config.d_model, **place)
        self.embedding = Embedding(tokens, learned, config.dropout, scale=1.0)
        self.layers = nn.ModuleList(_block(config, place) for _ in range(config.num_layers))
        self.norm = norm_of(config.norm)(config.d_model, eps=config.eps, **place)
        # A tied matrix has one name, so that no state dict, device or optimiser parts it in two.
        self.output = None
        if not config.tied:
            self.output = nn.Linear(config.d_model, config.vocab_size, bias=False, **place)
        window = config.window
        self.mask: Mask = Causal() if window is None else Causal() & Window(window)
        self._begin()

    def reset_parameters(self) -> None:
        """Begin the weights anew, as GPT-2 does: what joins the stream begins smaller."""
        for part in (*self.layers, self.norm, self.embedding.positions):
            if part is not None:
                part.reset_parameters()
        self._begin()

    def _begin(self) -> None:
        if self.embedding.tokens.weight.is_meta:
            return  # as in the layers: nothing to fill
        nn.init.normal_(self.embedding.tokens.weight, std=0.02)
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=0.02)
        for layer in self.layers:
            assert isinstance(layer, Block)
            for linear in (layer.self_attention.out_proj, layer.feed_forward.down):
                nn.init.normal_(linear.weight, std=0.02 * (2 * len(self.layers)) ** -0.5)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        mask: Mask | Tensor | None = None,
        positions: Positions = None,
        caches: Sequence[Cache] | None = None,
        last_only: bool = False,
        weights_into: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch length vocab_size"] | Float[Tensor, "batch 1 vocab_size"]:
        """Logits of each token that follows one of these.

        Args:
            tokens: Token ids; with caches, the new ones only.
            mask: What hides tokens beside the future, such as `Padding(...)` or `Documents(...)`.
            positions: Where the tokens stand; below 0 = no token, which is how to pad on the left.
                None: 0, 1, 2, ..., or after those of the caches.
            caches: From `new_caches`; they hold what went before.
            last_only: Whether to compute the logits of the last token alone.
            weights_into: Receives each layer's weights.

        Raises:
            OptionError: If a token is not of the vocabulary.
            PositionError: If the text is longer than `max_length`.
            CacheError: If the caches do not fit the model or the tokens.

        Whatever is refused or fails, in any layer, the caches are then as they were.
        """
        x, bound = self.begin(tokens, mask, positions, caches)
        with nullcontext() if caches is None else self.serving(caches):
            for index, layer in enumerate(self.layers):
                cache = None if caches is None else caches[index]
                x = layer(x, mask=bound, cache=cache, weights_into=weights_into)
        x = self.norm(x[:, -1:] if last_only else x)
        return F.linear(x, self.embedding.tokens.weight) if self.output is None else self.output(x)

    def begin(
        self,
        tokens: Tensor,
        mask: Mask | Tensor | None = None,
        positions: Positions = None,
        caches: Sequence[Cache] | None = None,
    ) -> tuple[Tensor, Bound | None]:
        """The stream that enters the layers, and who may see whom, settled once for all of them.

        Args:
            tokens: As in a call, and so are the others.
            mask: See there.
            positions: See there.
            caches: See there.
        """
        check_ids("tokens", tokens, self.config.vocab_size)
        first = None if caches is None else self._checked(caches)[0]
        stand = positions
        if stand is None and first is not None:
            stand = first.follow(tokens.shape[1], tokens.device).position
        self._check_reach(stand, tokens)
        rule = self.mask if mask is None else self.mask & as_mask(mask)
        return settle_self(self.embedding(tokens, stand), rule, positions, first)

    def with_weights(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        mask: Mask | Tensor | None = None,
        positions: Positions = None,
        caches: Sequence[Cache] | None = None,
    ) -> tuple[Float[Tensor, "batch length vocab_size"], dict[str, Tensor]]:
        """Logits as from a call, and every head's weights by the name of its layer.

        Returns:
            Logits, and (batch, heads, q_len, kv_len) under "layers.0", "layers.1" and so on.
        """
        seen: list[Tensor] = []
        logits = self(tokens, mask=mask, positions=positions, caches=caches, weights_into=seen)
        return logits, {f"layers.{index}": weights for index, weights in enumerate(seen)}

    def new_caches(self, kind: Callable[[], Cache] = GrowingCache) -> list[Cache]:
        """An empty cache for each layer.

        Args:
            kind: Makes one, such as ``lambda: mh.FixedCache(4096)``.
        """
        return [kind() for _ in self.layers]

    def _checked(self, caches: Sequence[Cache]) -> Sequence[Cache]:
        if len(caches) != len(self.layers):
            raise CacheError(
                f"caches must be one for each of {len(self.layers)} layers; got {len(caches)}. "
                f"Take them from new_caches()."
            )
        return caches

    def _check_reach(self, stand: Positions, tokens: Tensor) -> None:
        longest = self.config.max_length
        if longest is None or not tokens.numel():
            return
        if isinstance(stand, Tensor):
            check_positions("positions", stand, *tokens.shape)
            if not values_are_cheap(stand):
                return
            last = int(stand.max())
        else:
            last = (stand or 0) + tokens.shape[1] - 1
        if last >= longest:
            raise PositionError(
                f"a text must be no longer than max_length={longest} tokens; got one that reaches "
                f"position {last}. Shorten it, or build the model with a longer max_length."
            )

    @contextmanager
    def serving(self, caches: Sequence[Cache]) -> Iterator[None]:
        """Let caches serve one call of the model; if it fails, they are as they were before."""
        if torch.compiler.is_compiling():
            yield
            return
        # Each layer mends its own cache; this mends those of the layers before it too.
        with ExitStack() as stack:
            for layer, cache in zip(self.layers, caches, strict=True):
                stack.enter_context(cache.serving(layer.self_attention))
            yield


def _block(config: DecoderConfig, place: dict[str, Any]) -> Block:
    attention = MultiHeadAttention(
        config.d_model,
        config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        bias=config.bias,
        dropout=config.dropout,
        rotary=_rotary(config),
        init="normal",
        **place,
    )
    feed_forward = FeedForward(
        config.d_model,
        config.d_hidden,
        activation=config.activation,
        bias=config.bias is True,
        init="normal",
        **place,
    )
    norm: dict[str, Any] = {"norm": "pre", "kind": config.norm, "eps": config.eps}
    residuals = (
        Residual(config.d_model, dropout=config.dropout, **norm, **place) for _ in range(2)
    )
    return Block(attention, feed_forward, *residuals)


def _rotary(config: DecoderConfig) -> Rotary | None:
    if config.positions != "rotary":
        return None
    head_dim = checked_head_dim(config.d_model, config.num_heads, config.head_dim)
    return Rotary(head_dim, base=config.rotary_base, scaling=config.rotary_scaling)
