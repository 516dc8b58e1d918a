"""Heads that look at a place: the token before, the first token, the token itself."""

import torch
from jaxtyping import Bool
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.functional import Statistics
from manyheads.lens.average import PerHead, over_queries, positions
from manyheads.lens.checks import check_call, check_tensor


def offset_score(call: Statistics, behind: int) -> PerHead:
    """How much weight a query gives to the key so many tokens behind it, on average.

    From 0 to 1; a uniform head has the mean of one over the keys that a query sees. Queries before
    which there is no such token do not count.

    Args:
        call: The call.
        behind: 1 for the previous token, 0 for the query's own, -1 for the next one.

    Source:
        Voita et al. 2019 (arXiv:1905.09418), positional heads; Olsson et al. 2022
        (arXiv:2209.11895), previous-token heads.

    Example:
        >>> import torch
        >>> from manyheads.lens import of_weights
        >>> shifted = torch.eye(4).roll(1, dims=0).tril()
        >>> offset_score(of_weights(shifted[None, None]), behind=1)
        tensor([[1.]])
    """
    check_call(call)
    if not isinstance(behind, int):
        raise OptionError(
            f"behind must be a number of tokens; got behind={behind!r}. 1 is the token before."
        )
    q, kv = positions(call)
    there = q - behind
    has = (there >= kv.amin(dim=-1, keepdim=True)) & (there <= kv.amax(dim=-1, keepdim=True))
    return over_queries(call, call.mass_behind(behind), has)


def previous_token_score(call: Statistics) -> PerHead:
    """How much weight a query gives to the token before it: `offset_score` with 1.

    From 0 to 1; a uniform causal head has the mean of one over the keys that a query sees, without
    the first query.

    Source:
        Olsson et al. 2022 (arXiv:2209.11895), previous-token heads.

    Example:
        >>> import torch
        >>> from manyheads.lens import of_weights
        >>> previous_token_score(of_weights(torch.eye(4).roll(1, dims=0).tril()[None, None]))
        tensor([[1.]])
    """
    return offset_score(call, 1)


def sink_mass(call: Statistics, keys: Bool[Tensor, "*batch kv_len"] | None = None) -> PerHead:
    """How much weight a query gives to sinks, on average.

    From 0 to 1; a uniform head has the mean share of sinks among the keys that a query sees. The
    sinks themselves do not count as queries. What a learned sink logit takes is not part of it.

    Args:
        call: The call.
        keys: Which keys are sinks, (kv_len,) or (batch, kv_len): "[SEP]", commas; None for the
            first one.

    Source:
        Xiao et al. 2023 (arXiv:2309.17453); Clark et al. 2019 (arXiv:1906.04341), section 3.2.

    Example:
        >>> import manyheads as mh, torch
        >>> q = k = v = torch.zeros(1, 1, 4, 8)
        >>> sink_mass(mh.statistics(q, k, v))
        tensor([[0.2500]])
    """
    check_call(call)
    q, kv = positions(call)
    if keys is None:
        keys = kv == kv.amin(dim=-1, keepdim=True)
    check_tensor("keys", keys, kinds="truth")
    if keys.ndim not in (1, 2) or keys.shape[-1] != kv.shape[-1]:
        raise ShapeError(
            f"keys must be (kv_len,) or (batch, kv_len), with kv_len={kv.shape[-1]}; got shape "
            f"{tuple(keys.shape)}. Say of each key whether it is a sink."
        )
    keys = keys.to(kv.device)
    sinks = keys if keys.ndim == 2 else keys[None]
    # A query is a sink where its position is that of one. Sequence by sequence, because all pairs
    # of a long text would be a gigabyte.
    count = max(len(q), len(kv), len(sinks))
    each = zip(*(of.expand(count, -1) for of in (q, kv, sinks)), strict=True)
    is_sink = torch.stack([torch.isin(own, there[chosen]) for own, there, chosen in each])
    return over_queries(call, call.mass(keys if keys.shape[0] > 1 else keys[0]), ~is_sink)
