"""A learned bias for each head and bucket of distances: fine near by, coarse far away."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.positions.bias import (
    Bias,
    Place,
    accurate,
    distances,
    run_of_distances,
    spread_distances,
)
from manyheads.shapes import check_count


class T5Bias(Bias):
    """Add to each score the learned number of its head and of its bucket of distance.

    Half of the buckets hold one distance each; the others grow geometrically up to
    ``max_distance``, and the last holds all that is farther.

    How ours differs: the logarithms are compared as integers, exactly, so that no rounding moves a
    distance into the next bucket; positions decide, so that a query after a cache knows its
    distances. T5 itself does not scale its scores: call ``attention(..., scale=1.0)``. Its layers
    share one table: give all of them the same object.

    Args:
        num_heads: Query heads.
        num_buckets: Rows of the table.
        max_distance: The distance from which all are alike, in tokens.
        reach: ``"both"`` gives keys before and after the query half of the buckets each (T5's
            encoder); ``"past"`` spends all on keys before it (T5's decoder).
        device: Where the table is made.
        dtype: The dtype of the table.

    Raises:
        OptionError: If the buckets cannot be laid out so.

    Source:
        Raffel et al. 2019, section 2.1 (arXiv:1910.10683); ``_relative_position_bucket`` of
        mesh-tensorflow.

    Example:
        >>> bias = T5Bias(2, reach="past")
        >>> bias.buckets(torch.tensor([0, -1, -15, -16, -20, -21, -200, 5]))
        tensor([ 0,  1, 15, 16, 17, 18, 31,  0])
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        reach: Literal["both", "past"] = "both",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(check_count("num_heads", num_heads))
        check_count("num_buckets", num_buckets)
        check_count("max_distance", max_distance)
        if reach not in ("both", "past"):
            raise OptionError(
                f"reach must be 'both' or 'past'; got reach={reach!r}. An encoder looks both ways, "
                f"a decoder to the past."
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.reach = reach
        self._edges = _edges(num_buckets, max_distance, sides=2 if reach == "both" else 1)
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew: normal, with standard deviation 0.02."""
        nn.init.normal_(self.table, std=0.02)

    def buckets(self, relative: Int[Tensor, "*pairs"]) -> Int[Tensor, "*pairs"]:
        """The bucket of each ``kv_pos - q_pos``, 0 to ``num_buckets - 1``."""
        away = relative.abs() if self.reach == "both" else (-relative).clamp(min=0)
        edges = torch.tensor(self._edges, device=relative.device)
        bucket = torch.bucketize(away, edges, right=True)  # how many edges it has passed
        if self.reach == "both":
            bucket = bucket + (relative > 0) * (self.num_buckets // 2)
        return bucket

    def forward(
        self,
        q: Float[Tensor, "batch num_heads q_len head_dim"],
        k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
        q_pos: Place,
        kv_pos: Place,
        *,
        scale: float,
    ) -> Float[Tensor, "#batch #num_heads q_len kv_len"]:
        table = accurate(self.table).T
        if isinstance(q_pos, Tensor) or isinstance(kv_pos, Tensor):
            bucket = self.buckets(-distances(q_pos, kv_pos, q, k))
            return table[:, bucket.squeeze(1)].transpose(0, 1)
        row = table[:, self.buckets(-run_of_distances(q_pos, kv_pos, q, k))]
        return spread_distances(row, k.shape[2])[None]

    def of_distance(self, like: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """See `Bias.of_distance`."""
        far = self.max_distance
        every = torch.arange(-far, far + 1, device=like.device)
        by_distance = accurate(self.table).T[:, self.buckets(-every)]
        limit = torch.full((self.num_heads,), far, device=like.device)  # from there all are alike
        return lambda head, distance: by_distance[
            head, torch.minimum(torch.maximum(distance, -limit[head]), limit[head]) + limit[head]
        ]

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, "
            f"max_distance={self.max_distance}, reach={self.reach!r}"
        )


def _edges(num_buckets: int, max_distance: int, *, sides: int) -> tuple[int, ...]:
    """The first distance of each bucket of one side but the first."""
    a_side = num_buckets // sides
    exact, coarse = a_side // 2, a_side - a_side // 2
    if num_buckets % sides or exact < 1 or max_distance <= exact:
        raise OptionError(
            f"num_buckets must be {'even and ' if sides == 2 else ''}at least {2 * sides}, and "
            f"max_distance greater than the {exact} distances with a bucket of their own; got "
            f"num_buckets={num_buckets}, max_distance={max_distance}. T5 has 32 and 128."
        )
    # Bucket exact + t begins at the first n with (n / exact) ** coarse >= (max / exact) ** t.
    powers = (max_distance**t * exact ** (coarse - t) for t in range(1, coarse))
    return (*range(1, exact + 1), *(_root(power, coarse) for power in powers))


def _root(number: int, degree: int) -> int:
    """The smallest n with ``n ** degree >= number``."""
    low, high = 0, number
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if middle**degree >= number else (middle + 1, high)
    return low
