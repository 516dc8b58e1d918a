"""Reformer's layers: chunks of neighbours, and chunks of tokens whose hashes are alike."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ProbeError
from manyheads.functional import Call
from manyheads.functional.call import prepare
from manyheads.masks import Causal, Dense, Mask, Rule
from manyheads.positions import Bias
from manyheads.probe.layer import Layer, Read, places_of, without
from manyheads.probe.repeats import Repeats

_ROUNDING = 0.02
"""A token that sees nobody but itself has a score of -1e5, whose logarithms fp32 rounds so much."""


def read_local(layer: Layer) -> list[Read]:
    """The call of a layer whose chunks are neighbours, the first beside the last.

    Source:
        Kitaev et al. 2020 (arXiv:2001.04451); the ring of chunks is the library's.
    """
    return [Read(lambda: _local(layer), _of_real(layer))]


def read_hashed(layer: Layer) -> list[Read]:
    """The call of a layer whose chunks hold tokens of like hashes.

    Rounds of hashes are weighed by the sums of their exponentials, so that all are one softmax in
    which a query meets a key once for each round that shows it.

    Source:
        Kitaev et al. 2020 (arXiv:2001.04451), section 2.
    """
    return [Read(lambda: _hashed(layer), _of_real(layer), rounding=_ROUNDING)]


def _local(layer: Layer) -> Call:
    q, k, v = (layer.part(name) for name in ("query", "key", "value"))
    module = layer.module
    chunk, length = module.chunk_length, q.shape[2]
    if length <= chunk:  # a step with a cache too, from which the layer takes what it sees
        return _prepared(layer, q, k, v)
    chunks = length // chunk
    steps = range(-module.num_chunks_before, module.num_chunks_after + 1)

    def count(q: Tensor, kv: Tensor) -> Tensor:
        apart = kv // chunk - q // chunk
        return torch.stack([(apart - step) % chunks == 0 for step in steps]).sum(dim=0)

    seen = Rule(lambda head, q, kv: count(q, kv) > 0, "chunks")
    bias = Repeats(q.shape[1], count) if len(steps) > chunks else None
    return _prepared(layer, q, k, v, seen, bias=bias)


def _hashed(layer: Layer) -> Call:
    q, v = layer.part("query_key"), layer.part("value")
    if layer.given.get("past_buckets_states") and layer.output[0].shape[1] == 1:
        raise ProbeError(
            "hashed attention must read its text at once; got a step with a cache, whose keys "
            "were chosen by their hashes. Run the model on the whole text."
        )
    k = layer.module._len_and_dim_norm(q, q.shape[3] ** 0.5)
    # A token sees itself only where it sees no other.
    last_resort = torch.eye(q.shape[2], device=q.device).mul(-1e5)[None, None]
    if layer.output.buckets is None:  # the text is no longer than one chunk
        return _prepared(layer, q, k, v, bias=last_resort, scale=1.0)
    count = _meetings(layer.module, layer.output.buckets)
    bias = count.clamp(min=1).to(torch.float32).log() + last_resort
    return _prepared(layer, q, k, v, Dense(count > 0), bias=bias, scale=1.0)


def _meetings(module: Any, buckets: Tensor) -> Tensor:
    """How often each query meets each key, (batch, heads, length, length)."""
    rounds = buckets.shape[2]
    order = buckets.flatten(2).argsort(dim=-1, stable=True)
    chunk = (order.argsort(dim=-1) // module.chunk_length).view_as(buckets)
    chunks = order.shape[-1] // module.chunk_length
    count = chunk.new_zeros(1, dtype=torch.int32)
    for step in range(-module.num_chunks_before, module.num_chunks_after + 1):
        seen = (chunk + step) % chunks
        for mine in range(rounds):
            for theirs in range(rounds):
                met = seen[:, :, mine, :, None] == chunk[:, :, theirs, None]
                count = count + met
    return count


def _prepared(
    layer: Layer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Mask | None = None,
    *,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
) -> Call:
    there = _there(layer)
    mask = seen
    if layer.module.is_decoder:
        mask = Causal() if seen is None else Causal() & seen
    place = None if there is None else places_of(there)
    return prepare(
        q, k, v, mask, bias=bias, scale=scale, softcap=None, sink_logits=None,
        dropout=0.0, q_pos=place, kv_pos=place, need="weights",
    )  # fmt: skip


def _there(layer: Layer) -> Tensor | None:
    """Which tokens are no padding; None if all are."""
    keep = layer.given.get("attention_mask")
    return None if keep is None else keep.bool()


def _of_real(layer: Layer) -> Callable[[Tensor], Tensor]:
    there = _there(layer)
    return (lambda x: x) if there is None else without(~there)
