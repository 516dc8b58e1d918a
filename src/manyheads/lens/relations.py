"""Heads that look along relations: from a word to its head in a parse, to what it refers to."""

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.functional import Statistics
from manyheads.lens.average import PerHead, over_queries
from manyheads.lens.checks import check_call, check_tensor


def relation_share(call: Statistics, answers: Int[Tensor, "*batch q_len"]) -> PerHead:
    """Of how many tokens the strongest key is the right one: the head in a parse, an antecedent.

    From 0 to 1. A head that looks at random has the mean of one over the keys that a query sees; a
    head that always looks as far reaches what `offset_share` says, which is the baseline to beat.

    Args:
        call: The call.
        answers: For each query the number of its key, (q_len,) or (batch, q_len); -1 where there
            is none, which does not count.

    Raises:
        ShapeError: If they are not one a query.
        OptionError: If one is no key.

    Source:
        Clark et al. 2019 (arXiv:1906.04341), section 4; Voita et al. 2019 (arXiv:1905.09418).

    Example:
        >>> from manyheads.lens import of_weights
        >>> parse = torch.tensor([1, -1, 1])  # the cat sleeps: "the" and "sleeps" hang on "cat"
        >>> relation_share(of_weights(torch.eye(3)[[1, 1, 0]][None, None]), parse)
        tensor([[0.5000]])
    """
    check_call(call)
    check_tensor("answers", answers, kinds="whole")
    q_len, kv_len = call.call.q.shape[2], call.call.k.shape[2]
    if answers.ndim not in (1, 2) or answers.shape[-1] != q_len:
        raise ShapeError(
            f"answers must be (q_len,) or (batch, q_len), with q_len={q_len}; got shape "
            f"{tuple(answers.shape)}. Give the number of the right key for each query, or -1."
        )
    if bool((answers >= kv_len).any()) or bool((answers < -1).any()):
        raise OptionError(
            f"answers must be from 0 to {kv_len - 1}, or -1 for none; got "
            f"{int(answers.min())} to {int(answers.max())}. Count tokens from 0."
        )
    answers = (answers if answers.ndim == 2 else answers[None]).to(call.call.q.device)
    right = call.peak().key == answers[:, None]
    return over_queries(call, right.to(torch.float32), answers >= 0)


def offset_share(answers: Int[Tensor, " q_len"]) -> tuple[int, float]:
    """The distance that is right most often, and for which share of the tokens it is.

    Args:
        answers: For each query the number of its key; -1 where there is none.

    Returns:
        Key minus query, in tokens, and a share from 0 to 1: what a head reaches that always looks
        so far.

    Raises:
        OptionError: If no token has an answer.

    Source:
        Clark et al. 2019 (arXiv:1906.04341), table 1, fixed-offset baselines.

    Example:
        >>> offset_share(torch.tensor([1, 2, 0, -1]))
        (1, 0.6666666666666666)
    """
    check_tensor("answers", answers, kinds="whole")
    if answers.ndim != 1:
        raise ShapeError(
            f"answers must be (q_len,); got shape {tuple(answers.shape)}. Give one sentence's."
        )
    distance = (answers - torch.arange(len(answers), device=answers.device))[answers >= 0]
    if not len(distance):
        raise OptionError(
            "answers must hold at least one key; got only -1. Give the parse's heads as numbers."
        )
    values, counts = distance.unique(return_counts=True)
    best = int(counts.argmax())
    return int(values[best]), int(counts[best]) / len(distance)
