"""Turn queries and keys by their positions, so that scores read distances alone."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import OptionError, ShapeError
from manyheads.positions.angles import check_base, frequencies
from manyheads.positions.given import read_positions
from manyheads.positions.rotation import Pairs, check_heads, check_pairs
from manyheads.positions.turn import Turn, make_turn
from manyheads.shapes import Positions, check_count


class Rotary(nn.Module):
    """Turn each pair of features by an angle that grows with the position.

    Pair i of the token at position p turns by ``p * base^(-2i / head_dim)``. A query at p and a key
    at s then meet in a score that knows p - s alone.

    How ours differs: there is no buffer and no maximum length. Angles are made from plain numbers
    in float32 (float64 for float64 features), so ``module.to(bfloat16)``, a meta device and a
    strict load cannot spoil them. Which features pair up is a word, never a bool: see ``rotate``.
    A position below 0 is no token: its row is not turned.

    Args:
        head_dim: Width of a head, in features; even.
        base: The slowest pair takes nearly ``2 pi base`` tokens for a turn.
        pairs: ``"halves"`` (GPT-NeoX, Llama in Hugging Face) or ``"interleaved"`` (GPT-J).
        device: Taken so that all modules are built alike; there is no tensor to place.
        dtype: Taken likewise; the features decide.

    Source:
        Su et al. 2021, section 3.2.2 (arXiv:2104.09864).

    Example:
        >>> rotary = Rotary(2)
        >>> q = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
        >>> rotary(q)
        tensor([[[[ 1.0000,  0.0000],
                  [ 0.5403,  0.8415],
                  [-0.4161,  0.9093]]]])
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        pairs: Pairs = "halves",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("head_dim", head_dim)
        check_base(base)
        check_pairs(pairs)
        if head_dim % 2:
            raise OptionError(
                f"head_dim must be even, since features turn in pairs; got head_dim={head_dim}. "
                f"Choose head_dim={head_dim + 1}, or turn a part of the features with rotate()."
            )
        self.head_dim = head_dim
        self.base = float(base)
        self.pairs: Pairs = pairs
        self._frequencies = frequencies(head_dim, self.base)

    def forward(
        self, x: Float[Tensor, "batch heads length head_dim"], positions: Positions = None
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """Queries or keys, turned; call once for each of the two.

        Args:
            x: Queries or keys, split into heads; views are welcome.
            positions: Where the tokens stand: None for 0, 1, 2, ..., an int for the first of a
                run, or integers (length,) or (batch, length).

        Raises:
            ShapeError: If ``x`` is not (batch, heads, length, head_dim).
            DTypeError: If ``x`` is not of floats.
            PositionError: If the positions are not integers, one a token.
        """
        return self.at(positions, like=x).rotate(x)

    def at(
        self, positions: Positions = None, *, like: Float[Tensor, "batch heads length head_dim"]
    ) -> Turn:
        """The turn of these positions, made once for all that stand there.

        Args:
            positions: As in a call of the module.
            like: What will be turned, or anything of its batch, length, dtype and device.

        Example:
            >>> rotary = Rotary(8)
            >>> q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
            >>> turn = rotary.at(torch.arange(5), like=q)
            >>> torch.equal(turn(k), rotary(k))
            True
        """
        check_heads(like)
        batch, _, length, head_dim = like.shape
        if head_dim != self.head_dim:
            raise ShapeError(
                f"x must have head_dim={self.head_dim} features a head; got head_dim={head_dim}. "
                f"Build Rotary with the width of a head: d_model // num_heads."
            )
        given = read_positions(positions, batch=batch, length=length, device=like.device)
        return make_turn(self._frequencies, given, pairs=self.pairs, like=like)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base:g}, pairs={self.pairs!r}"
