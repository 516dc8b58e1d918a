"""Turn queries and keys by their positions, so that scores read distances alone."""

import functools

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from manyheads.errors import OptionError, ShapeError
from manyheads.positions.angles import check_base, frequencies
from manyheads.positions.axes import Axes, read_coordinates, spread_positions
from manyheads.positions.given import as_tensor, is_plain_call, read_positions
from manyheads.positions.rotation import Pairs, check_heads, check_pairs
from manyheads.positions.scaling import Scaling
from manyheads.positions.turn import Turn, make_turn, turn_to
from manyheads.shapes import Positions, check_count


class Rotary(nn.Module):
    """Turn each pair of features by an angle that grows with the position.

    Pair i of the token at position p turns by ``p * base^(-2i / rotary_dim)``. A query at p and a
    key at s then meet in a score that knows p - s alone.

    How ours differs: there is no buffer and no maximum length. Angles are made from plain numbers
    in float32 (float64 for float64 features), so ``module.to(bfloat16)``, a meta device and a
    strict load cannot spoil them. Which features pair up is a word, never a bool: see ``rotate``.
    A position below 0 is no token: its row is not turned.

    Args:
        head_dim: Width of a head, in features.
        base: The slowest pair takes nearly ``2 pi base`` tokens for a turn.
        pairs: ``"halves"`` (GPT-NeoX, Llama in Hugging Face) or ``"interleaved"`` (GPT-J).
        rotary_dim: Features that turn, the first ones of a head; even. None turns them all.
        scaling: How the frequencies change for texts longer than in training, as `YaRN(...)`.
        axes: Which pair turns by which coordinate, as `Axial(2)` or `Sections((16, 24, 24))`;
            None turns all by the position.
        device: Taken so that all modules are built alike; there is no tensor to place.
        dtype: Taken likewise; the features decide.

    Source:
        Su et al. 2021, section 3.2.2 (arXiv:2104.09864); partial, Black et al. 2022, section 2.1.1
        (arXiv:2204.06745).

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
        rotary_dim: int | None = None,
        scaling: Scaling | None = None,
        axes: Axes | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("head_dim", head_dim)
        check_base(base)
        check_pairs(pairs)
        _check_kinds(scaling, axes)
        self.head_dim = head_dim
        self.rotary_dim = _checked_rotary_dim(head_dim, rotary_dim)
        self.base = float(base)
        self.pairs: Pairs = pairs
        self.scaling = scaling
        self.axes = axes
        self.gain = 1.0 if scaling is None else scaling.gain
        self.score_factor = 1.0 if scaling is None else scaling.score_factor
        self.depends_on_length = scaling is not None and scaling.depends_on_length
        self._axis_of_pair = () if axes is None else axes.of_pairs(self.rotary_dim // 2)
        self._frequencies = self._settled_frequencies()

    def _settled_frequencies(self) -> tuple[float, ...]:
        if self.scaling is not None and self.scaling.depends_on_length:
            return _at_length(self.scaling, self.rotary_dim, self.base, 0)
        if self.axes is not None:
            return self.axes.frequencies(self.rotary_dim, self._spectrum)
        return self._spectrum(self.rotary_dim)

    def _spectrum(self, width: int) -> tuple[float, ...]:
        if self.scaling is None:
            return frequencies(width, self.base)
        return self.scaling.frequencies(width, self.base)

    def forward(
        self,
        x: Float[Tensor, "batch heads length head_dim"],
        positions: Positions = None,
        *,
        coordinates: Tensor | None = None,
        length: int | Tensor | None = None,
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """Queries or keys, turned; call once for each of the two.

        Args:
            x: Queries or keys, split into heads; views are welcome.
            positions: Where the tokens stand: None for 0, 1, 2, ..., an int for the first of a
                run, or integers (length,) or (batch, length).
            coordinates: Where they stand along each of `axes`, (length, axes) or (batch, length,
                axes), any numbers; read instead of the positions.
            length: Tokens of the text so far, if the scaling depends on it: an int, or integers
                (batch or 1, 1). None means up to the last of the positions.

        Raises:
            ShapeError: If ``x`` is not (batch, heads, length, head_dim), or coordinates do not fit.
            DTypeError: If ``x`` is not of floats.
            PositionError: If the positions are not integers, one a token; or if coordinates are
                given to a rotary without axes, or missing.
        """
        return self.at(positions, coordinates=coordinates, length=length, like=x).rotate(x)

    def at(
        self,
        positions: Positions = None,
        *,
        coordinates: Tensor | None = None,
        length: int | Tensor | None = None,
        like: Float[Tensor, "batch heads length head_dim"],
    ) -> Turn:
        """The turn of these positions, made once for all that stand there.

        Args:
            positions: As in a call of the module, and so are the next two.
            coordinates: See there.
            length: See there.
            like: What will be turned, or anything of its batch, length, dtype and device.

        Example:
            >>> rotary = Rotary(8)
            >>> q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
            >>> turn = rotary.at(torch.arange(5), like=q)
            >>> torch.equal(turn(k), rotary(k))
            True
        """
        check_heads(like)
        batch, _, tokens, head_dim = like.shape
        if head_dim != self.head_dim:
            raise ShapeError(
                f"x must have head_dim={self.head_dim} features a head; got head_dim={head_dim}. "
                f"Build Rotary with the width of a head: d_model // num_heads."
            )
        given = read_positions(positions, batch=batch, length=tokens, device=like.device)
        if self.axes is not None or coordinates is not None:
            return self._turn_to(coordinates, given, like)
        turns: tuple[float, ...] | Tensor = self._frequencies
        if self.depends_on_length:
            turns = self._frequencies_at(given, length, like)
        return make_turn(turns, given, pairs=self.pairs, like=like, gain=self.gain)

    def _frequencies_at(
        self, given: int | Tensor, length: int | Tensor | None, like: Tensor
    ) -> tuple[float, ...] | Tensor:
        assert self.scaling is not None
        if is_plain_call(like) and not isinstance(given, Tensor) and not isinstance(length, Tensor):
            reached = given + like.shape[2] if length is None else length
            return _at_length(self.scaling, self.rotary_dim, self.base, reached)
        if length is None:
            places = as_tensor(given, length=like.shape[2], device=like.device)
            rows = places[None] if places.ndim == 1 else places
            # No token at all reaches nowhere; amax would refuse it.
            length = F.pad(rows, (1, 0), value=-1).amax(dim=-1, keepdim=True) + 1
        elif not isinstance(length, Tensor):
            length = torch.full((1, 1), length, device=like.device)
        return self.scaling.frequencies_at(self.rotary_dim, self.base, length.flatten())

    def _turn_to(self, coordinates: Tensor | None, given: int | Tensor, like: Tensor) -> Turn:
        batch, _, length, _ = like.shape
        if coordinates is not None:
            places = read_coordinates(coordinates, self.axes, batch, length, like.device)
        else:
            places = as_tensor(given, length=length, device=like.device)
            places = spread_positions(places, self.axes)
        return turn_to(
            places,
            self._frequencies,
            self._axis_of_pair,
            pairs=self.pairs,
            like=like,
            gain=self.gain,
        )

    def extra_repr(self) -> str:
        parts = [f"{self.head_dim}, base={self.base:g}, pairs={self.pairs!r}"]
        if self.rotary_dim != self.head_dim:
            parts.append(f"rotary_dim={self.rotary_dim}")
        parts += [
            f"{name}={value}"
            for name, value in (("scaling", self.scaling), ("axes", self.axes))
            if value is not None
        ]
        return ", ".join(parts)


# A decoding loop asks once a step and layer.
@functools.lru_cache(maxsize=64)
def _at_length(scaling: Scaling, width: int, base: float, length: int) -> tuple[float, ...]:
    row = scaling.frequencies_at(width, base, torch.tensor([length], dtype=torch.float64))
    return tuple(row[0].tolist())


def _checked_rotary_dim(head_dim: int, rotary_dim: int | None) -> int:
    if rotary_dim is None:
        if head_dim % 2:
            raise OptionError(
                f"head_dim must be even, since features turn in pairs; got head_dim={head_dim}. "
                f"Choose head_dim={head_dim + 1}, or turn a part of the features: rotary_dim=."
            )
        return head_dim
    check_count("rotary_dim", rotary_dim)
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise OptionError(
            f"rotary_dim must be even and at most head_dim={head_dim}; got "
            f"rotary_dim={rotary_dim}. A config's share of a head: int(share * head_dim)."
        )
    return rotary_dim


def _check_kinds(scaling: Scaling | None, axes: Axes | None) -> None:
    if scaling is not None and not isinstance(scaling, Scaling):
        raise OptionError(
            f"scaling must be an object such as YaRN(...); got scaling={scaling!r}. "
            f"manyheads.positions has them all."
        )
    if axes is not None and not isinstance(axes, Axes):
        raise OptionError(
            f"axes must be an object such as Axial(2); got axes={axes!r}. For Qwen's M-RoPE, "
            f"write Sections((16, 24, 24))."
        )
    if scaling is not None and axes is not None and scaling.depends_on_length:
        raise OptionError(
            f"a scaling that depends on the length must go without axes; got scaling={scaling}, "
            f"axes={axes}. Coordinates tell no length: take YaRN, NTKScaling or another."
        )
