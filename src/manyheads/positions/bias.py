"""What a bias is that reads positions: one small protocol, and the distances it needs."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.positions.given import as_tensor

Place = int | Tensor
"""The first position of a run, or integers (length,) or (batch, length)."""


class Bias(nn.Module):
    """A change of scores that reads positions, given to `attention` as ``bias=``.

    To write one, subclass and define `forward`. It is called with the positions that the mask
    reads, so it is right under caches, left padding and packing without a word about them. What it
    gives for absent tokens is never read, but must be finite.

    Args:
        num_heads: Query heads that it serves.

    Example:
        >>> import torch, manyheads as mh
        >>> from manyheads.positions import distances
        >>> class Nearest(mh.Bias):
        ...     def forward(self, q, k, q_pos, kv_pos, *, scale):
        ...         return -distances(q_pos, kv_pos, q, k).square().float()
        >>> q = k = v = torch.eye(3)[None, None]
        >>> mh.attention(q, k, v, bias=Nearest(1))[0, 0, 0]
        tensor([0.8218, 0.1697, 0.0085])
    """

    reads_content = False
    """Whether it looks at queries and keys, so that its gradient reaches them."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(
        self,
        q: Float[Tensor, "batch num_heads q_len head_dim"],
        k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
        q_pos: Place,
        kv_pos: Place,
        *,
        scale: float,
    ) -> Float[Tensor, "#batch #num_heads q_len kv_len"]:
        """What is added to the scores, in fp32 at least.

        Args:
            q: Queries.
            k: Keys.
            q_pos: Where the queries stand: the first position of a run, or integers (q_len,) or
                (batch, q_len).
            kv_pos: Where the keys stand, likewise.
            scale: What q.k is multiplied by.
        """
        raise NotImplementedError

    def fold(
        self, q: Tensor, k: Tensor, q_pos: Place, kv_pos: Place, *, scale: float
    ) -> "Folded | None":
        """The bias as further features of q and k, for pairs whose key is not after the query.

        None where there is no such form, or none that would be exact.
        """
        return None

    def of_distance(self, like: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
        """The bias as a function of head and distance, where these two decide it; else None.

        A kernel asks it pair by pair: the head and ``q_pos - kv_pos`` are single integers, and
        tensors that it indexes by them may be on ``like``'s device only.
        """
        return None


class Folded:
    """A bias as further features, to stand *before* those of q and k.

    Before them, because then a sum that runs over the features meets large numbers that cancel
    while it is still exact.

    Args:
        q: (rows, num_heads, q_len, columns).
        k: (rows, 1, kv_len, columns).
        per_row: (rows, num_heads, q_len), what is still missing in each row of scores; None for
            nothing. Softmax does not see it, log-sum-exp does.
    """

    def __init__(self, q: Tensor, k: Tensor, per_row: Tensor | None = None) -> None:
        self.q, self.k, self.per_row = q, k, per_row


def distances(
    q_pos: Place, kv_pos: Place, q: Tensor, k: Tensor
) -> Int[Tensor, "rows 1 q_len kv_len"]:
    """How far each query stands after each key, in tokens; below 0 where it stands before."""
    return rows_of(q_pos, q)[:, None, :, None] - rows_of(kv_pos, k)[:, None, None, :]


def rows_of(place: Place, heads: Tensor) -> Int[Tensor, "rows length"]:
    """The position of each token, a row for each sequence or one for all."""
    places = as_tensor(place, length=heads.shape[2], device=heads.device)
    return places[None] if places.ndim == 1 else places


def run_of_distances(q_pos: int, kv_pos: int, q: Tensor, k: Tensor) -> Int[Tensor, " distances"]:
    """Every distance between two runs, once, from the smallest to the largest."""
    first = q_pos - kv_pos - k.shape[2] + 1
    return torch.arange(first, first + q.shape[2] + k.shape[2] - 1, device=q.device)


def spread_distances(
    by_distance: Float[Tensor, "*rows distances"], kv_len: int
) -> Float[Tensor, "*rows q_len kv_len"]:
    """Numbers of the distances between two runs, written out for each pair."""
    # Row i of the pairs is a window of the distances, read backwards.
    return by_distance.flip(-1).unfold(-1, kv_len, 1).flip(-2)


def accurate(x: Tensor) -> Tensor:
    """In fp32 at least."""
    return x if x.dtype == torch.float64 else x.float()
