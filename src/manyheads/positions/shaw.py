"""Scores that also compare the query with a trained vector of the distance, clipped."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.positions.bias import Bias, Place, accurate, distances
from manyheads.shapes import check_count


class ShawBias(Bias):
    """Add ``scale * q_i . a_(j - i)``, where a is a trained vector of the clipped distance.

    All heads share the vectors. Positions decide, so q_len and kv_len may differ.

    Args:
        num_heads: Query heads.
        head_dim: Width of a head.
        max_distance: Distances are clipped to minus and plus this number of tokens.
        device: Where the vectors are made.
        dtype: Their dtype.

    Source:
        Shaw et al. 2018, equation 4 (arXiv:1803.02155).

    Example:
        >>> import manyheads as mh
        >>> bias = ShawBias(2, 4, max_distance=8)
        >>> q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
        >>> mh.attention(q, k, k, mh.Causal(), bias=bias).shape
        torch.Size([1, 2, 3, 4])
    """

    reads_content = True

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        max_distance: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(check_count("num_heads", num_heads))
        self.head_dim = check_count("head_dim", head_dim)
        self.max_distance = check_count("max_distance", max_distance)
        count = 2 * max_distance + 1
        self.table = nn.Parameter(torch.empty(count, head_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew, uniform as Xavier has it."""
        nn.init.xavier_uniform_(self.table)

    def forward(
        self,
        q: Float[Tensor, "batch num_heads q_len head_dim"],
        k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
        q_pos: Place,
        kv_pos: Place,
        *,
        scale: float,
    ) -> Float[Tensor, "#batch #num_heads q_len kv_len"]:
        q = accurate(q)
        by_distance = q @ accurate(self.table).to(q.dtype).T * scale
        index = _clipped(distances(q_pos, kv_pos, q, k), self.max_distance)
        return by_distance.gather(-1, index.expand(*q.shape[:3], -1))

    def extra_repr(self) -> str:
        return f"{self.num_heads}, head_dim={self.head_dim}, max_distance={self.max_distance}"


class ShawValues(nn.Module):
    """What Shaw's relative values add to the output: the mean of the vectors of the distances.

    Args:
        value_dim: Width of a value.
        max_distance: Distances are clipped to minus and plus this number of tokens.
        device: Where the vectors are made.
        dtype: Their dtype.

    Source:
        Shaw et al. 2018, equation 3 (arXiv:1803.02155).

    Example:
        >>> import manyheads as mh
        >>> q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
        >>> out, weights = mh.attention_with_weights(q, k, k, mh.Causal())
        >>> out = out + ShawValues(4, max_distance=8)(weights)
        >>> out.shape
        torch.Size([1, 2, 3, 4])
    """

    def __init__(
        self,
        value_dim: int,
        *,
        max_distance: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.max_distance = check_count("max_distance", max_distance)
        shape = 2 * max_distance + 1, check_count("value_dim", value_dim)
        self.table = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew, uniform as Xavier has it."""
        nn.init.xavier_uniform_(self.table)

    def forward(
        self,
        weights: Float[Tensor, "batch num_heads q_len kv_len"],
        q_pos: Place | None = None,
        kv_pos: Place | None = None,
    ) -> Float[Tensor, "batch num_heads q_len value_dim"]:
        """What to add to the output.

        Args:
            weights: Those of `attention_with_weights`.
            q_pos: Where the queries stand; None makes them the last of the keys.
            kv_pos: Where the keys stand; give both or neither.
        """
        q_len, kv_len = weights.shape[-2:]
        q_pos = kv_len - q_len if q_pos is None else q_pos
        keys = weights.mT
        apart = distances(q_pos, 0 if kv_pos is None else kv_pos, weights, keys)
        index = _clipped(apart, self.max_distance).expand(weights.shape)
        # Weight of each clipped distance: (batch, num_heads, q_len, distances).
        shares = accurate(weights)
        shares = shares.new_zeros(*weights.shape[:3], len(self.table)).scatter_add(
            -1, index, shares
        )
        return (shares @ accurate(self.table).to(shares.dtype)).to(weights.dtype)

    def extra_repr(self) -> str:
        return f"{self.table.shape[1]}, max_distance={self.max_distance}"


def _clipped(apart: Tensor, most: int) -> Tensor:
    """The row of the table for each distance; kv_pos - q_pos = -most has the first."""
    return (-apart).clamp(-most, most) + most
