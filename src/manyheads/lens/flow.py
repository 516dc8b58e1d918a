"""Attention as pipes: how much can flow from an input token to a token of the last layer."""

from collections import deque
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import ShapeError
from manyheads.functional import Statistics
from manyheads.lens.rollout import check_stack, one_hot
from manyheads.shapes import check_probability

MOST_TOKENS = 256
_LEAST = 1e-9


def flow(
    calls: Sequence[Statistics], query: int, *, residual: float = 0.5
) -> Float[Tensor, " length"]:
    """How much of each input token can reach a token of the last layer.

    The greatest flow through a network whose edges are the heads' mean weights, mixed with the
    residual stream as in `rollout`. From 0 to 1 for each token; an upper bound of its rollout.
    Under uniform heads that see all, every token but the query's has the same.

    Args:
        calls: The self-attention of each layer, from the first to the last, of one sequence.
        query: The token of the last layer.
        residual: The share of the stream that passes a layer by.

    Raises:
        ShapeError: If there are more than 256 tokens, more than one sequence, or the calls are not
            self-attention over the same tokens.
        OptionError: If the query is not among the tokens.

    Source:
        Abnar and Zuidema 2020 (arXiv:2005.00928), section 3 (attention flow).

    Example:
        >>> from manyheads.lens import of_weights
        >>> shifted = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> layer = of_weights(shifted[None, None])
        >>> flow([layer, layer], query=2)
        tensor([0.5000, 1.0000, 0.5000])
    """
    batch, length = check_stack(calls)
    check_probability("residual", residual)
    if batch != 1 or length > MOST_TOKENS:
        raise ShapeError(
            f"calls must be of one sequence of at most {MOST_TOKENS} tokens; got {batch} of "
            f"{length}. Use rollout, which takes any length."
        )
    start = int(one_hot([query], length, calls[0].call.q).argmax())
    edges: dict[int, dict[int, float]] = {}
    top = len(calls)
    for layer, call in enumerate(calls):
        mean = call.weights()[0].mean(dim=0).cpu()
        mixed = residual * torch.eye(length) + (1 - residual) * mean.float()
        for i, row in enumerate(mixed.tolist()):
            # Node (layer, token) has the number layer * length + token; 0 are the inputs.
            out = {layer * length + j: weight for j, weight in enumerate(row) if weight > _LEAST}
            edges[(layer + 1) * length + i] = out
    return torch.tensor([_greatest(edges, top * length + start, token) for token in range(length)])


def _greatest(edges: dict[int, dict[int, float]], source: int, target: int) -> float:
    """The greatest flow between two nodes, by shortest paths that still have room."""
    room = {node: dict(out) for node, out in edges.items()}
    total = 0.0
    while path := _path(room, source, target):
        least = min(room[a][b] for a, b in path)
        for a, b in path:
            room[a][b] -= least
            back = room.setdefault(b, {})
            back[a] = back.get(a, 0.0) + least
        total += least
    return total


def _path(
    room: dict[int, dict[int, float]], source: int, target: int
) -> list[tuple[int, int]] | None:
    came: dict[int, int] = {source: source}
    waiting = deque([source])
    while waiting:
        node = waiting.popleft()
        for after, left in room.get(node, {}).items():
            if left > _LEAST and after not in came:
                came[after] = node
                waiting.append(after)
        if target in came:
            path = []
            while target != source:
                path.append((came[target], target))
                target = came[target]
            return path[::-1]
    return None
