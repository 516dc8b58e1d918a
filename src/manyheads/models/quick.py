"""A decoder read in few calls: in a step of decoding they cost more than what they compute."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.cache import Cache, CrossCache, RingCache
from manyheads.functional import attention
from manyheads.layers import Block, FeedForward, MultiHeadAttention, Residual
from manyheads.layers.bare import Bare, NotBareError
from manyheads.layers.feed_forward import ACTIVATIONS
from manyheads.layers.norm import LayerNorm, RMSNorm
from manyheads.layers.skinny import MOST_ROWS, product
from manyheads.masks import Bound, Tokens
from manyheads.models.decoder import Decoder
from manyheads.positions import Rotary
from manyheads.positions.given import is_plain_call
from manyheads.positions.turn import Turn

Linear = tuple[Tensor, Tensor | None]
"""Weight and bias."""


class QuickDecoder:
    """The steps of a `Decoder` after its prompt, without gradients, on the CPU.

    It computes what the model computes, but for rounding, from the model's own weights, of which it
    holds no copy; a change in place is seen at once.

    Args:
        model: The decoder.

    Raises:
        NotBareError: If a part of the model is not what its class says.
    """

    def __init__(self, model: Decoder) -> None:
        self._bare = bare = Bare(model.embedding.tokens.weight.dtype)
        self.model = bare.module(model, Decoder)
        blocks = bare.part(model, "layers", nn.ModuleList)
        self.layers = [_layer(bare, bare.part(blocks, name, Block)) for name in blocks._modules]
        self.output = bare.weights(bare.part(model.embedding, "tokens", nn.Embedding))
        if model.output is not None:
            self.output = bare.weights(bare.part(model, "output", nn.Linear))

    def serves(self, tokens: Tensor, caches: Sequence[Cache]) -> bool:
        """Whether nobody could tell this from a call of the model."""
        return (
            0 < tokens.numel() <= MOST_ROWS
            and not torch.is_grad_enabled()
            and is_plain_call(tokens)
            and not torch.is_autocast_enabled("cpu")
            and self._bare.dtype is self.output[0].dtype
            and self.output[0].is_cpu
            and self._bare.holds()
            and all(map(_keeps_a_text, caches))
        )

    def __call__(self, tokens: Tensor, caches: Sequence[Cache]) -> Tensor:
        """Logits of each token that follows one of these, (batch, length, vocab_size)."""
        x, bound = self.model.begin(tokens, caches=caches)
        assert bound is not None
        step = _Step(bound)
        with self.model.serving(caches):
            for layer, cache in zip(self.layers, caches, strict=True):
                x = layer.read(x, cache, step)
        return product(self.model.norm(x), *self.output)


def quick_form(model: object) -> QuickDecoder | None:
    """The quick form of a model that has one."""
    if type(model) is not Decoder:
        return None
    try:
        return QuickDecoder(model)
    except NotBareError:
        return None


class _Norm(NamedTuple):
    weight: Tensor
    bias: Tensor | None
    eps: float
    is_rms: bool

    def __call__(self, x: Tensor) -> Tensor:
        if not self.is_rms:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        # Twice as many calls in torch's own: sqrt(n) x / sqrt(|x|^2 + n eps).
        wide, n = x if x.element_size() >= 4 else x.float(), x.shape[-1]
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        length = torch.hypot(length, length.new_tensor((n * self.eps) ** 0.5))
        return (wide / length * n**0.5 * self.weight).to(x.dtype)


class _Step:
    """What the layers of a step share.

    Args:
        bound: Who may see whom among the new tokens.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self._bounds: dict[tuple[int, int], Bound] = {}
        self._turns: dict[object, Turn] = {}

    def turn(self, rotary: Rotary, like: Tensor) -> Turn:
        key = rotary._frequencies, rotary.pairs, rotary.gain
        if key not in self._turns:
            self._turns[key] = rotary.at(self.bound.q.position, like=like)
        return self._turns[key]

    def among(self, keys: Tokens) -> Bound:
        """Who may see whom among all keys of a cache."""
        if isinstance(keys.position, Tensor) or keys.absent is not None or keys.marks:
            return self.bound.with_keys(keys)
        run = keys.position, keys.length
        if run not in self._bounds:
            self._bounds[run] = self.bound.with_keys(keys)
        return self._bounds[run]


class _Layer(NamedTuple):
    attention: MultiHeadAttention
    attention_norm: _Norm
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    rotary: Rotary | None
    thought_norm: _Norm
    gate: Linear | None
    up: Linear
    down: Linear
    activation: str

    def read(self, x: Tensor, cache: Cache, step: _Step) -> Tensor:
        """The stream after this layer."""
        x = x + self._attend(self.attention_norm(x), cache, step)
        y, bend = self.thought_norm(x), ACTIVATIONS[self.activation]
        hidden = product(y, *self.up)
        hidden = bend(hidden) if self.gate is None else bend(product(y, *self.gate)) * hidden
        return x + product(hidden, *self.down)

    def _attend(self, x: Tensor, cache: Cache, step: _Step) -> Tensor:
        layer, (batch, length, _) = self.attention, x.shape
        # Queries and keys are turned together, for half the calls.
        both = torch.cat((product(x, *self.q), product(x, *self.k)), dim=-1)
        both = both.view(batch, length, -1, layer.head_dim).transpose(1, 2)
        v = product(x, *self.v).view(batch, length, -1, layer.head_dim).transpose(1, 2)
        if self.rotary is not None:
            both = step.turn(self.rotary, both).rotate(both)
        q, k = both.split((layer.num_heads, layer.num_kv_heads), dim=1)
        k, v, keys = cache.append(k, v, step.bound.kv)
        mixed = attention(
            q, k, v, step.among(keys), scale=layer._scale, softcap=layer.scores.softcap
        )
        return product(mixed.transpose(1, 2).reshape(batch, length, -1), *self.out)


def _layer(bare: Bare, block: Block) -> _Layer:
    layer = bare.part(block, "self_attention", MultiHeadAttention)
    thought = bare.part(block, "feed_forward", FeedForward)
    extras = (layer.head_scale, layer.sink_logits, layer.gate_proj)
    if layer.projections != "separate" or any(extra is not None for extra in extras):
        raise NotBareError("a layer must be as `Decoder` builds it; got another. Call the model.")
    for name in ("q_norm", "k_norm"):
        bare.part(layer, name, nn.Identity)
    bare.part(layer, "output_dropout", nn.Dropout)
    bare.part(thought, "dropout", nn.Dropout)

    def linear(module: nn.Module, name: str) -> Linear:
        return bare.weights(bare.part(module, name, nn.Linear))

    rotary = None if layer.rotary is None else bare.part(layer, "rotary", Rotary)
    if rotary is not None and (rotary.depends_on_length or rotary.axes is not None):
        raise NotBareError("a rotary must turn keys once; got another. Call the model itself.")
    return _Layer(
        layer,
        _norm(bare, bare.part(block, "attention_residual", Residual)),
        linear(layer, "q_proj"),
        linear(layer, "k_proj"),
        linear(layer, "v_proj"),
        linear(layer, "out_proj"),
        rotary,
        _norm(bare, bare.part(block, "feed_forward_residual", Residual)),
        None if thought.gate is None else linear(thought, "gate"),
        linear(thought, "up"),
        linear(thought, "down"),
        thought.activation,
    )


def _norm(bare: Bare, residual: Residual) -> _Norm:
    bare.part(residual, "dropout", nn.Dropout)
    norm = bare.part(residual, "norm", RMSNorm, LayerNorm)
    return _Norm(*bare.weights(norm), norm.eps, isinstance(norm, RMSNorm))


def _keeps_a_text(cache: Cache) -> bool:
    # Keys of tokens that are counted in the cache are turned anew in each step.
    counts = isinstance(cache, RingCache) and cache.keep_first > 0
    return not counts and not isinstance(cache, CrossCache)
