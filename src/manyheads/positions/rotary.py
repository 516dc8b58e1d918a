"""Turn queries and keys by their positions, so that scores read distances alone."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.errors import OptionError, ShapeError
from manyheads.positions.angles import angle_dtype, check_base, cos_sin, frequencies
from manyheads.positions.given import (
    Positions,
    as_tensor,
    check_positions,
    check_width,
    is_plain_call,
)
from manyheads.positions.rotation import (
    Pairs,
    Spread,
    check_heads,
    check_pairs,
    check_tables,
    rotate,
    rotate_by_formula,
    spread,
    turn,
)


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
        check_width("head_dim", head_dim)
        check_base(base)
        check_pairs(pairs)
        if head_dim % 2:
            raise OptionError(
                f"head_dim must be even, since features turn in pairs; got head_dim={head_dim}. "
                f"Choose {head_dim - 1 or 2} or {head_dim + 1}, or rotate a part with rotate()."
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
            DTypeError: If ``x`` is not of floats or ``positions`` not of integers.
            PositionError: If the positions are not one a token.
        """
        made = self._make(x, positions)
        if made._spread is None:
            return rotate_by_formula(x, made.cos, made.sin, pairs=self.pairs)
        return turn(x, made._spread)

    def at(
        self, positions: Positions = None, *, like: Float[Tensor, "batch heads length head_dim"]
    ) -> "Turn":
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
        return self._make(like, positions)

    def _make(self, like: Tensor, positions: Positions) -> "Turn":
        check_heads(like)
        batch, _, length, head_dim = like.shape
        if head_dim != self.head_dim:
            raise ShapeError(
                f"x must have head_dim={self.head_dim} features a head; got head_dim={head_dim}. "
                f"Build Rotary with the width of a head: d_model // num_heads."
            )
        check_positions(positions, batch=batch, length=length, device=like.device)
        plain = is_plain_call(like)
        small = length * len(self._frequencies) <= _KEPT_SIZE
        if plain and small and like.is_cpu and not isinstance(positions, Tensor):
            return _kept_run(self._frequencies, self.pairs, positions or 0, length, like.dtype)
        return _make_turn(
            self._frequencies,
            self.pairs,
            as_tensor(positions, length=length, device=like.device),
            like.dtype,
            lay_out=plain,
        )

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base:g}, pairs={self.pairs!r}"


_KEPT_SIZE = 2**20
"""Angles up to which a run is kept for the next call: 32,768 tokens of 32 pairs, 8 MB or 16."""

_SHORT = 64
"""Tokens up to which a run is cut from a kept, longer one."""


@dataclass(frozen=True, eq=False)
class Turn:
    """The turn of some tokens: give it their queries or keys.

    Attributes:
        cos: Cosines of the angles, (length, pairs) or (batch, length, pairs). Read, do not write:
            other calls may share them.
        sin: Sines of the angles, likewise.
        pairs: Which features make a pair.
    """

    cos: Tensor
    sin: Tensor
    pairs: Pairs
    _spread: Spread | None
    _dtype: torch.dtype

    def __call__(
        self, x: Float[Tensor, "batch heads length head_dim"]
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """``x`` turned, in its own dtype."""
        if self._spread is None or x.dtype != self._dtype or not is_plain_call(x):
            return rotate(x, self.cos, self.sin, pairs=self.pairs)
        check_tables(x, self.cos, self.sin)
        return turn(x, self._spread)

    def _rows(self, first: int, length: int) -> "Turn":
        cos, sin, *laid_out = (
            table.narrow(-2, first, length) for table in (self.cos, self.sin, *self._spread)
        )
        return Turn(cos, sin, self.pairs, tuple(laid_out), self._dtype)


def _make_turn(
    frequencies: tuple[float, ...],
    pairs: Pairs,
    positions: Tensor,
    dtype: torch.dtype,
    *,
    lay_out: bool,
) -> Turn:
    cos, sin = cos_sin(frequencies, positions, angle_dtype(dtype))
    laid_out = spread(cos, sin, pairs=pairs, dtype=dtype) if lay_out else None
    return Turn(cos, sin, pairs, laid_out, dtype)


# Sines cost more than the rotation itself, and every layer and step asks for the same ones. Keyed by
# all that decides them. On the CPU only: elsewhere a kept tensor could outlive its stream or graph.
@functools.lru_cache(maxsize=8)
def _kept_run(
    frequencies: tuple[float, ...], pairs: Pairs, start: int, length: int, dtype: torch.dtype
) -> Turn:
    if length <= _SHORT:  # Decoding asks for the next token each time: cut it from a longer run.
        first = start - start % _SHORT
        longer = _kept_run(frequencies, pairs, first, 2 * _SHORT + 1, dtype)
        return longer._rows(start - first, length)
    # Ordinary tensors, for a training step may use what a call under inference_mode made first.
    with torch.inference_mode(False), torch.no_grad():
        positions = as_tensor(start, length=length, device=torch.device("cpu"))
        return _make_turn(frequencies, pairs, positions, dtype, lay_out=True)
