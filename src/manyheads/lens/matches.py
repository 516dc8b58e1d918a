"""Heads that look for a token again: at its earlier copy, or at what followed it."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from manyheads.errors import ShapeError
from manyheads.functional import Statistics
from manyheads.functional.masses import Pairs
from manyheads.lens.average import PerHead, over_queries, positions
from manyheads.lens.checks import check_call, check_tensor


def duplicate_token_score(call: Statistics, tokens: Int[Tensor, "*batch kv_len"]) -> PerHead:
    """How much weight a query gives to earlier copies of its own token, on average.

    From 0 to 1; a uniform head has the mean share of copies among the keys that a query sees.
    Queries without an earlier copy do not count.

    Args:
        call: Of self-attention.
        tokens: The keys' tokens, (kv_len,) or (batch, kv_len).

    Raises:
        ShapeError: If they are not one a key.

    Source:
        Wang et al. 2022 (arXiv:2211.00593), duplicate-token heads.

    Example:
        >>> import manyheads as mh
        >>> q = k = v = torch.zeros(1, 1, 4, 8)
        >>> duplicate_token_score(mh.statistics(q, k, v), torch.tensor([7, 8, 7, 8]))
        tensor([[0.2500]])
    """
    return _score(call, tokens, behind=0)


def induction_score(call: Statistics, tokens: Int[Tensor, "*batch kv_len"]) -> PerHead:
    """How much weight a query gives to what followed earlier copies of its token, on average.

    From 0 to 1; a uniform head has the mean share of such keys among those that a query sees.
    Queries without one do not count. On a random text that is written twice the score is that of
    the paper; on any text it is the share of what a head could look up.

    Args:
        call: Of self-attention.
        tokens: The keys' tokens, (kv_len,) or (batch, kv_len).

    Raises:
        ShapeError: If they are not one a key.

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022
        (arXiv:2209.11895).

    Example:
        >>> import manyheads as mh
        >>> q = k = v = torch.zeros(1, 1, 4, 8)
        >>> induction_score(mh.statistics(q, k, v), torch.tensor([7, 8, 7, 8]))
        tensor([[0.2500]])
    """
    return _score(call, tokens, behind=1)


class Copies(NamedTuple):
    """Earlier copies of tokens, or what followed them.

    Args:
        pairs: Which pairs of a query and a key are of that kind.
        has: Which queries have such a key, (batch or 1, q_len).
    """

    pairs: Pairs
    has: Bool[Tensor, "_batch q_len"]


def copies(call: Statistics, tokens: Tensor, behind: int) -> Copies:
    """Earlier keys before which, by so many tokens, stands the query's token.

    Args:
        call: Of self-attention.
        tokens: The keys' tokens, (kv_len,) or (batch, kv_len).
        behind: 0 for copies, 1 for what followed them.

    Raises:
        ShapeError: If the tokens are not one a key.
    """
    check_call(call)
    check_tensor("tokens", tokens, kinds="whole")
    q, kv = positions(call)
    if tokens.ndim not in (1, 2) or tokens.shape[-1] != kv.shape[-1]:
        raise ShapeError(
            f"tokens must be (kv_len,) or (batch, kv_len), with kv_len={kv.shape[-1]}; got shape "
            f"{tuple(tokens.shape)}. Give the id of each key's token, and -1 for each that the "
            f"model adds, as Longformer fills its last window."
        )
    tokens = (tokens if tokens.ndim == 2 else tokens[None]).to(kv.device)
    queries = _at(tokens, kv, q)
    keys = _at(tokens, kv, kv - behind)
    # All pairs are compared, which takes half as long in half the bits. What is no token, below 0,
    # is like nothing.
    like = queries.where(queries >= 0, -2), keys.where(keys >= 0, -1)
    own, there, q_pos, kv_pos = (x.int() for x in (*like, q, kv))

    def pairs(sequence: slice, rows: slice, columns: slice) -> Tensor:
        same = _of(own, sequence)[:, rows, None] == _of(there, sequence)[:, None, columns]
        earlier = _of(q_pos, sequence)[:, rows, None] > _of(kv_pos, sequence)[:, None, columns]
        return same.logical_and_(earlier)[:, None]

    return Copies(pairs, _first_place(queries, keys, kv) < q)


def _score(call: Statistics, tokens: Tensor, behind: int) -> PerHead:
    found = copies(call, tokens, behind)
    return over_queries(call, call.mass_of(found.pairs), found.has)


def _first_place(queries: Tensor, keys: Tensor, places: Tensor) -> Tensor:
    """The first place of a key with the token of each query; beyond every place if none has it."""
    rows = max(len(queries), len(keys), len(places))
    queries, keys, places = (x.expand(rows, -1) for x in (queries, keys, places))
    tokens, index = torch.cat((queries, keys), dim=1).unique(return_inverse=True)
    of_queries, of_keys = index.split((queries.shape[1], keys.shape[1]), dim=1)
    nowhere = torch.iinfo(places.dtype).max
    first = places.new_full((rows, len(tokens)), nowhere)
    first.scatter_reduce_(1, of_keys, places.where(keys >= 0, nowhere), "amin")
    return first.gather(1, of_queries)


def _at(tokens: Tensor, places: Tensor, wanted: Tensor) -> Tensor:
    """The tokens at some positions; -1 where there is none."""
    rows = max(len(tokens), len(places), len(wanted))
    tokens, places, wanted = (x.expand(rows, -1).contiguous() for x in (tokens, places, wanted))
    ordered, order = places.sort(dim=-1)
    found = torch.searchsorted(ordered, wanted).clamp(max=places.shape[-1] - 1)
    there = ordered.gather(-1, found) == wanted
    return tokens.gather(-1, order.gather(-1, found)).where(there, -1)


def _of(x: Tensor, sequence: slice) -> Tensor:
    return x if x.shape[0] == 1 else x[sequence]
