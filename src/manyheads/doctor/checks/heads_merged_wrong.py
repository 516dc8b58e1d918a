"""Heads that are split or merged by a reshape across the length."""

from collections.abc import Iterator

import torch
from torch import Tensor

from manyheads.doctor.attentions import attentions
from manyheads.doctor.check import Check, Sign
from manyheads.doctor.patient import Patient

SHORTEST = 6
"""Tokens below which other mistakes can look like a wrong reshape by luck."""


def look(patient: Patient) -> Iterator[Sign]:
    """Compare who reads whom with what each wrong reshape would give."""
    for name, part in attentions(patient):
        if part.has_tokens and part.x.ndim == 3 and part.length > 2:
            for find in (_by_influence, _by_swapping, _by_period):
                signs = list(find(name, part))
                yield from signs
                if signs:
                    break


def _by_influence(name: str, part: Patient) -> Iterator[Sign]:
    if part.length < SHORTEST or part.facts.context is not None:
        return
    seen = part.influence > 0
    lawful = torch.ones_like(seen)
    causal = bool(seen.tril().any()) and not bool(seen.all())
    if bool(seen.all()) or torch.equal(seen, lawful.tril()):
        return
    for heads in _head_counts(part):
        for under_mask in (False, True) if causal else (False,):
            for what, expected in _patterns(part.length, heads, under_mask).items():
                if torch.equal(seen, expected) and not bool(expected.all()):
                    wrong = int((seen & ~lawful.tril()).sum()) or int((~seen).sum())
                    unit = f"pairs are as {what} of {heads} heads leaves them"
                    yield Sign(name, wrong, unit, "0")
                    return


def _by_swapping(name: str, part: Patient) -> Iterator[Sign]:
    """Two tokens that change places change their own two outputs, and no others."""
    if not bool((part.influence > 0).all()) or part.facts.context is not None:
        return
    one, two = 1, part.length - 2
    order = torch.arange(part.length)
    order[[one, two]] = order[[two, one]]
    axis = 0 if part.facts.layout == "length" else 1
    out = part.ask(part.base.put(part.facts.x, part.x.index_select(axis, order)))
    stayed = part.differs(out, part.out, allowed=part.close).amax(dim=0) == 0
    for heads in _head_counts(part):
        rows = torch.arange(part.length * heads) % part.length
        touched = ((rows == one) | (rows == two)).reshape(part.length, heads).any(dim=-1)
        lawful = (order != torch.arange(part.length)).equal(touched)
        if not lawful and not bool(touched.all()) and torch.equal(~stayed, touched):
            unit = "outputs change when two tokens change places"
            yield Sign(name, int(touched.sum()), unit, f"2; {heads} heads are merged across time")
            return


def _by_period(name: str, part: Patient) -> Iterator[Sign]:
    """Of equal tokens, a wrong split makes outputs that come again after each number of heads."""
    if part.facts.context is not None or not part.x.is_floating_point():
        return
    axis = 0 if part.facts.layout == "length" else 1
    x = part.x.narrow(axis, 0, 1).expand_as(part.x).contiguous()
    out = part.ask(part.base.put(part.facts.x, x))
    for heads in _head_counts(part):
        if heads >= part.length - 1:
            continue
        again = part.differs(out[:, heads:], out[:, :-heads], allowed=part.close)
        change = part.differs(out[:, 1:], out[:, :-1], allowed=part.close)
        if change.all() and not again.any():
            unit = f"of the output of equal tokens changes in turns of {heads}, the heads"
            yield Sign(name, float(change.max()), unit, "none")
            return


def _head_counts(part: Patient) -> list[int]:
    known = part.facts.num_heads
    width = part.x.shape[-1]
    others = [count for count in range(2, 17) if width % count == 0]
    return others if known is None else [known, *(each for each in others if each != known)]


def _patterns(length: int, heads: int, causal: bool) -> dict[str, Tensor]:
    """Who reads whom after each wrong reshape, outputs by inputs."""
    rows = torch.arange(heads * length)
    head, time = rows // length, rows % length
    # Of the memory (heads, length): which rows read which, inside a head.
    reads = head[:, None] == head[None, :]
    if causal:
        reads &= time[:, None] >= time[None, :]
    straight = torch.stack([rows % length == token for token in range(length)])
    crossed = torch.stack([rows // heads == token for token in range(length)])

    def pattern(outs: Tensor, ins: Tensor) -> Tensor:
        return (outs.double() @ reads.double() @ ins.double().T) > 0

    return {
        "merging without transposing back": pattern(crossed, straight),
        "splitting without transposing": pattern(straight, crossed),
        "splitting and merging without transposing": pattern(crossed, crossed),
    }


CHECK = Check(
    code="heads_merged_wrong",
    severity="error",
    title="Heads are split or merged across time",
    explanation="A view or reshape crosses the axes of heads and length, so that a token's output "
    "is put together from other tokens' heads. Shapes agree and nothing raises.",
    cure="Split by view(batch, length, heads, head_dim).transpose(1, 2), and merge by "
    "transpose(1, 2).reshape(batch, length, heads * head_dim).",
    healthy="an output is made of its own token's heads",
    source="jadore801120/attention-is-all-you-need-pytorch; pytorch/opacus#825",
    look=look,
    symptoms=(
        "rope_on_values",
        "future_leak",
        "padding_leak",
        "no_position",
        "mask_wrong_axis",
        "empty_row_nan",
        "empty_row_mean",
        "cache_mismatch",
        "document_leak",
        "window_off_by_one",
        "mask_inverted",
    ),
)
