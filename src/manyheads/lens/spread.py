"""How a head spreads its weight: over how many keys, how far away, over how much of the text."""

from manyheads.functional import Statistics
from manyheads.lens.average import PerHead, over_queries
from manyheads.lens.checks import check_call


def effective_keys(call: Statistics) -> PerHead:
    """Over how many keys a query spreads its weight: the exponential of the mean entropy.

    From 1 (one key) to the number of keys; a uniform head has the geometric mean of the numbers of
    keys that queries see. 0 if no query sees anybody.

    Source:
        Entropy of heads: Clark et al. 2019 (arXiv:1906.04341), section 3.3.

    Example:
        >>> import manyheads as mh, torch
        >>> q = k = v = torch.zeros(1, 1, 4, 8)
        >>> effective_keys(mh.statistics(q, k, v))
        tensor([[4.]])
    """
    check_call(call)
    mean = over_queries(call, call.entropy())
    return mean.exp() * call.lse().detach().isfinite().any(dim=-1)


def mean_distance(call: Statistics) -> PerHead:
    """How far away a query looks, in tokens, on average.

    From 0 to the length; a uniform causal head has a quarter of the length, one that sees all a
    third.

    Source:
        Dosovitskiy et al. 2020 (arXiv:2010.11929), figure 7; Vig and Belinkov 2019
        (arXiv:1906.04284), section 4.3.

    Example:
        >>> import manyheads as mh, torch
        >>> q = k = v = torch.zeros(1, 1, 3, 8)
        >>> mean_distance(mh.statistics(q, k, v, mh.Causal()))
        tensor([[0.5000]])
    """
    check_call(call)
    return over_queries(call, call.distance())


def coverage(call: Statistics) -> PerHead:
    """Over how much of the text the weight falls that all queries give together.

    The exponential of the entropy of what keys receive, over the number of keys: 1 if each
    receives as much, 1 / kv_len if one receives all. A uniform head that sees all has 1.

    Source:
        Coverage of a source text: Tu et al. 2016 (arXiv:1601.04811).

    Example:
        >>> from manyheads.lens import of_weights
        >>> import torch
        >>> one = torch.eye(4)[[2, 2, 2, 2]]
        >>> coverage(of_weights(torch.stack([torch.eye(4), one])[None]))
        tensor([[1.0000, 0.2500]])
    """
    check_call(call)
    received = call.received()
    whole = received.sum(dim=-1, keepdim=True)
    share = received / whole.where(whole > 0, 1.0)
    spread = (-share.xlogy(share).sum(dim=-1)).exp()
    return spread * (whole[..., 0] > 0) / received.shape[-1]
