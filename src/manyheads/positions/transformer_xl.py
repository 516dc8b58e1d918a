"""Scores that also compare the query with an encoding of the distance."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.positions.angles import angle_dtype, as_row, frequencies
from manyheads.positions.bias import Bias, Place, accurate, rows_of
from manyheads.shapes import check_count


class TransformerXLBias(Bias):
    """Add ``scale * (u . k_j + (q_i + v) . r_ij)``, where r_ij encodes the distance i - j.

    With q_i . k_j these are the four terms of the paper. ``r_ij`` is a projection of the sines,
    then cosines, of the distance.

    How ours differs: no relative shift is needed between positions that are not a run (left
    padding, packing): sines of a distance fall apart into those of the two positions. Query and key
    lengths may differ, with a memory before the first query.

    Args:
        num_heads: Query heads.
        head_dim: Width of a head.
        d_model: Width of the encoding of a distance; even.
        device: Where the weights are made.
        dtype: Their dtype.

    Source:
        Dai et al. 2019, section 3.3 (arXiv:1901.02860); XLNet, Yang et al. 2019
        (arXiv:1906.08237).

    Example:
        >>> import manyheads as mh
        >>> bias = TransformerXLBias(2, 4, 8)
        >>> q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
        >>> mh.attention(q, k, k, mh.Causal(), bias=bias).shape
        torch.Size([1, 2, 3, 4])
    """

    reads_content = True

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        d_model: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(check_count("num_heads", num_heads))
        self.head_dim = check_count("head_dim", head_dim)
        self.d_model = check_count("d_model", d_model)
        if d_model % 2:
            raise OptionError(
                f"d_model must be even, a sine and a cosine for each speed; got "
                f"d_model={d_model}. Choose d_model={d_model + 1}."
            )
        self.u = nn.Parameter(torch.empty(num_heads, head_dim, device=device, dtype=dtype))
        self.v = nn.Parameter(torch.empty(num_heads, head_dim, device=device, dtype=dtype))
        self.r_proj = nn.Linear(
            d_model, num_heads * head_dim, bias=False, device=device, dtype=dtype
        )
        self._frequencies = frequencies(d_model, 10000.0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: normal, with standard deviation 0.02, as the authors do."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(
        self,
        q: Float[Tensor, "batch num_heads q_len head_dim"],
        k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
        q_pos: Place,
        kv_pos: Place,
        *,
        scale: float,
    ) -> Float[Tensor, "#batch #num_heads q_len kv_len"]:
        k = accurate(k)
        keys = k.repeat_interleave(self.num_heads // k.shape[1], dim=1)
        # (batch, num_heads, kv_len, head_dim) @ (num_heads, head_dim, 1)
        content = (keys @ accurate(self.u).to(k.dtype)[:, :, None]).mT
        asked = accurate(q) + accurate(self.v).to(k.dtype)[:, None]
        weight = accurate(self.r_proj.weight).to(k.dtype).view(self.num_heads, self.head_dim, -1)
        if isinstance(q_pos, Tensor) or isinstance(kv_pos, Tensor):
            place = self._by_places(asked @ weight, rows_of(q_pos, q), rows_of(kv_pos, k))
        else:
            place = self._by_distance(asked, weight, q_pos, kv_pos, k.shape[2])
        return (content + place) * scale

    def _by_distance(
        self, asked: Tensor, weight: Tensor, q_pos: int, kv_pos: int, kv_len: int
    ) -> Tensor:
        """Each query against each distance once, then every row shifted into its place."""
        q_len = asked.shape[2]
        # From the largest down, and one more, so that a row of pairs starts one earlier than the
        # row before it: query i and key j meet at q_len - 1 - i + j.
        last = q_pos + q_len - 1 - kv_pos
        away = torch.arange(last, last - q_len - kv_len, -1, device=asked.device)
        sin, cos = self._waves(away, asked.dtype)
        encoded = torch.cat((sin, cos), dim=-1) @ weight.mT  # (num_heads, distances, head_dim)
        flat = (asked @ encoded.mT).flatten(-2)[..., q_len - 1 :]
        width = q_len + kv_len - 1
        return flat[..., : q_len * width].unflatten(-1, (q_len, width))[..., :kv_len]

    def _by_places(self, asked: Tensor, q_places: Tensor, kv_places: Tensor) -> Tensor:
        """sin(i - j) and cos(i - j), made of the sines and cosines of i and of j."""
        of_sin, of_cos = asked.chunk(2, dim=-1)
        sin, cos = (t[:, None] for t in self._waves(q_places, asked.dtype))
        left = torch.cat((of_cos * sin - of_sin * cos, of_sin * sin + of_cos * cos), dim=-1)
        right = torch.cat(self._waves(kv_places, asked.dtype), dim=-1)
        return left @ right[:, None].mT

    def _waves(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angles = places.to(dtype)[..., None] * as_row(
            self._frequencies, angle_dtype(dtype), like=places
        )
        return angles.sin(), angles.cos()

    def extra_repr(self) -> str:
        return f"{self.num_heads}, head_dim={self.head_dim}, d_model={self.d_model}"
