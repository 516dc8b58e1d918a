"""A few rows and tokens of an example: enough to find faults, and quick."""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.facts import Facts
from manyheads.doctor.running import run

ROWS, TOKENS = 3, 11
"""Odd and unequal to each other, since round numbers can agree by luck."""


LARGE = 20_000_000
"""Parameters from which on a model is asked less, so that it is examined in a minute."""


def is_large(model: nn.Module) -> bool:
    """Whether a model has so many parameters that each call of it takes long."""
    return sum(weight.numel() for weight in model.parameters()) > LARGE


def resized(model: nn.Module, call: Call, facts: Facts) -> Call:
    """The call at a size at which everything can be tried, or as it is if the model refuses."""
    tokens = 7 if is_large(model) else TOKENS
    tokens = tokens if facts.window is None else 3 * facts.window + 1
    for smaller in (
        _with_rows(_with_tokens(call, facts, tokens), facts),
        _with_rows(call, facts),
        _with_tokens(call, facts, tokens),
    ):
        try:
            run(model, smaller)
        except Exception:
            continue
        return smaller
    return call


def _streams(call: Call, facts: Facts) -> list[tuple[Any, Tensor]]:
    names = ("x", "context", "value", "padding", "context_padding", "documents", "positions")
    slots = [getattr(facts, each.name) for each in fields(facts) if each.name in names]
    return [(slot, call.get(slot)) for slot in slots if isinstance(call.get(slot), Tensor)]


def _with_tokens(call: Call, facts: Facts, tokens: int) -> Call:
    x = call.get(facts.x)
    axis = 0 if facts.layout == "length" else 1
    if x.ndim > 3 or x.shape[axis] <= tokens or facts.cache is not None:
        return call
    length, known = x.shape[axis], _streams(call, facts)
    mask = call.get(facts.mask)
    if any(
        length in tensor.shape and all(tensor is not each for _, each in known)
        for _, tensor in call.tensors()
        if tensor is not mask
    ):
        return call  # nobody knows how to shorten that
    for slot, tensor in known:
        along = axis if slot in (facts.x, facts.context, facts.value) else tensor.ndim - 1
        if tensor.shape[along] > tokens:
            call = call.put(slot, tensor.narrow(along, 0, tokens).clone())
    if isinstance(mask, Tensor):
        call = call.put(facts.mask, mask[..., :tokens, :tokens].clone())
    return call


def _with_rows(call: Call, facts: Facts) -> Call:
    axis = 1 if facts.layout == "length" else 0
    batch = call.get(facts.x).shape[axis]
    if batch == ROWS or any(each is not None for each in _unknown(call, facts, batch)):
        return call
    for slot, tensor in _streams(call, facts):
        along = axis if slot in (facts.x, facts.context, facts.value) else 0
        if tensor.ndim > 1 and tensor.shape[along] == batch:
            rows = torch.arange(ROWS, device=tensor.device) % batch
            call = call.put(slot, tensor.index_select(along, rows))
    mask = call.get(facts.mask)
    if isinstance(mask, Tensor) and mask.ndim > 2 and mask.shape[0] == batch > 1:
        call = call.put(facts.mask, mask[torch.arange(ROWS) % batch])
    return call


def _unknown(call: Call, facts: Facts, batch: int) -> list[Tensor]:
    known = [tensor for _, tensor in _streams(call, facts)] + [call.get(facts.mask)]
    return [
        tensor
        for _, tensor in call.tensors()
        if all(tensor is not each for each in known) and tensor.ndim and tensor.shape[0] == batch
    ]
