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
from manyheads.layers.copies import versions
from manyheads.layers.feed_forward import ACTIVATIONS
from manyheads.layers.norm import LayerNorm, RMSNorm
from manyheads.layers.skinny import MOST_ROWS, Skinny
from manyheads.masks import Bound, Tokens
from manyheads.models.decoder import Decoder
from manyheads.positions import Rotary
from manyheads.positions.given import is_plain_call
from manyheads.positions.turn import Turn


class QuickDecoder:
    """The steps of a `Decoder` after its prompt, without gradients, on the CPU.

    It computes what the model computes, but for rounding, from the model's own weights or, after
    some steps, from a `Copy` of them that is read faster; a change that torch counts is seen at
    once. What passes from layer to layer is in fp32 at least.

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
        self.norm = _norm(bare, bare.part(model, "norm", RMSNorm, LayerNorm))
        output = bare.weights(bare.part(model.embedding, "tokens", nn.Embedding))
        if model.output is not None:
            output = bare.weights(bare.part(model, "output", nn.Linear))
        self.output = Skinny(output)

    def serves(self, tokens: Tensor, caches: Sequence[Cache]) -> bool:
        """Whether nobody could tell this from a call of the model."""
        return (
            0 < tokens.numel() <= MOST_ROWS
            and not torch.is_grad_enabled()
            and is_plain_call(tokens)
            and not torch.is_autocast_enabled("cpu")
            and self._bare.dtype is self.output.maps[0][0].dtype
            and self.output.maps[0][0].is_cpu
            and self._bare.holds()
            and all(map(_keeps_a_text, caches))
        )

    def __call__(self, tokens: Tensor, caches: Sequence[Cache]) -> Tensor:
        """Logits of each token that follows one of these, (batch, length, vocab_size)."""
        x, bound = self.model.begin(tokens, caches=caches)
        assert bound is not None
        step, dtype = _Step(bound), x.dtype
        x = x.flatten(0, 1).to(torch.promote_types(dtype, torch.float32))
        with self.model.serving(caches):
            for layer, cache in zip(self.layers, caches, strict=True):
                x = layer.read(x, cache, step)
        return self.output(self.norm(x)).to(dtype).view(*tokens.shape, -1)


def quick_form(model: object) -> QuickDecoder | None:
    """The quick form of a model that has one."""
    if type(model) is not Decoder:
        return None
    try:
        return QuickDecoder(model)
    except NotBareError:
        return None


class _Norm:
    """A norm of rows, in few calls; its weight is read in the dtype of the stream."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float, *, centred: bool) -> None:
        self.eps, self.centred, self.given = eps, centred, (weight, bias)
        self.weight, self.bias, self.least = weight, bias, weight
        self._seen: list[tuple[object, int]] = []

    def __call__(self, x: Tensor) -> Tensor:
        if self._seen != (now := versions(self.given)):
            self._seen = now
            self._read(x.dtype)
        if self.centred:
            return F.layer_norm(x, x.shape[1:], self.weight, self.bias, self.eps)
        # Torch's own takes twice as many calls: sqrt(n) x / sqrt(|x|^2 + n eps).
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True).hypot_(self.least)
        return x.div(length).mul_(self.weight)

    def _read(self, dtype: torch.dtype) -> None:
        weight, bias = self.given
        n, wide = len(weight), weight.detach().to(dtype)
        self.weight = wide if self.centred else wide * n**0.5
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.least = torch.tensor((n * self.eps) ** 0.5, dtype=dtype)


class _Step:
    """What the layers of a step share.

    Args:
        bound: Who may see whom among the new tokens.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self._bounds: dict[tuple[int, int], Bound] = {}
        self._turns: dict[object, Turn] = {}
        self._matrices: dict[object, Tensor] = {}

    def turn(self, rotary: Rotary, x: Tensor) -> Tensor:
        """Queries or keys, turned; a turn is linear, and one token has one matrix for all heads."""
        key = rotary._frequencies, rotary.pairs, rotary.gain
        if key not in self._turns:
            self._turns[key] = turn = rotary.at(self.bound.q.position, like=x)
            if x.shape[2] == 1:
                # Each unit vector is a head of its own: (batch, head_dim, 1, head_dim).
                units = torch.eye(x.shape[3], dtype=x.dtype)[None, :, None]
                self._matrices[key] = turn.rotate(units.expand(x.shape[0], -1, -1, -1))[:, :, 0]
        if x.shape[2] == 1:
            return torch.bmm(x[:, :, 0], self._matrices[key])[:, :, None]
        return self._turns[key].rotate(x)

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
    inward: Skinny  # queries, keys and values
    out: Skinny
    rotary: Rotary | None
    thought_norm: _Norm
    up: Skinny  # behind the gate, if there is one
    down: Skinny
    gated: bool
    activation: str

    def read(self, x: Tensor, cache: Cache, step: _Step) -> Tensor:
        """The stream after this layer."""
        x = x + self._attend(self.attention_norm(x), cache, step)
        hidden, bend = self.up(self.thought_norm(x)), ACTIVATIONS[self.activation]
        if self.gated:
            gate, up = hidden.chunk(2, dim=1)
            return x + self.down(bend(gate).mul_(up))
        return x + self.down(bend(hidden))

    def _attend(self, x: Tensor, cache: Cache, step: _Step) -> Tensor:
        layer, dtype = self.attention, self.out.maps[0][0].dtype
        heads = _split(self.inward(x), step.bound.q.length, layer.head_dim)
        both, v = heads.split_with_sizes(
            (layer.num_heads + layer.num_kv_heads, layer.num_kv_heads), dim=1
        )
        if self.rotary is not None:
            both = step.turn(self.rotary, both)
        q, k = both.to(dtype).split_with_sizes((layer.num_heads, layer.num_kv_heads), dim=1)
        k, v, keys = cache.append(k, v.to(dtype), step.bound.kv)
        mixed = _mix(q, k, v, step.among(keys), layer)
        return self.out(mixed.transpose(1, 2).reshape(x.shape[0], -1).to(x.dtype))


def _split(x: Tensor, length: int, head_dim: int) -> Tensor:
    # (batch * length, heads * head_dim) -> (batch, heads, length, head_dim)
    return x.view(-1, length, x.shape[1] // head_dim, head_dim).transpose(1, 2)


def _mix(q: Tensor, k: Tensor, v: Tensor, bound: Bound, layer: MultiHeadAttention) -> Tensor:
    """A layer's call of `attention`, or what it comes to where one query sees all keys."""
    plain = bound.is_plain and layer.scores.softcap is None and q.dtype != torch.float16
    if not plain or q.shape[2] > 1 or layer._scale <= 0:
        return attention(q, k, v, bound, scale=layer._scale, softcap=layer.scores.softcap)
    # Heads that share keys stand as rows beside them.
    packed = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    return F.scaled_dot_product_attention(packed, k, v, scale=layer._scale).view(q.shape)


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

    def linear(module: nn.Module, *names: str) -> Skinny:
        return Skinny(*(bare.weights(bare.part(module, name, nn.Linear)) for name in names))

    gated = thought.gate is not None
    rotary = None if layer.rotary is None else bare.part(layer, "rotary", Rotary)
    if rotary is not None and (rotary.depends_on_length or rotary.axes is not None):
        raise NotBareError("a rotary must turn keys once; got another. Call the model itself.")
    return _Layer(
        layer,
        _norm_of(bare, bare.part(block, "attention_residual", Residual)),
        linear(layer, "q_proj", "k_proj", "v_proj"),
        linear(layer, "out_proj"),
        rotary,
        _norm_of(bare, bare.part(block, "feed_forward_residual", Residual)),
        linear(thought, *(("gate", "up") if gated else ("up",))),
        linear(thought, "down"),
        gated,
        thought.activation,
    )


def _norm_of(bare: Bare, residual: Residual) -> _Norm:
    bare.part(residual, "dropout", nn.Dropout)
    return _norm(bare, bare.part(residual, "norm", RMSNorm, LayerNorm))


def _norm(bare: Bare, norm: RMSNorm | LayerNorm) -> _Norm:
    if norm.eps is None:
        raise NotBareError("a norm must have its eps; got eps=None. Call the model itself.")
    return _Norm(*bare.weights(norm), norm.eps, centred=isinstance(norm, LayerNorm))


def _keeps_a_text(cache: Cache) -> bool:
    # Keys of tokens that are counted in the cache are turned anew in each step.
    counts = isinstance(cache, RingCache) and cache.keep_first > 0
    return not counts and not isinstance(cache, CrossCache)
