"""The two patterns of the Sparse Transformer."""

from dataclasses import dataclass

from torch import Tensor

from manyheads.errors import OptionError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Side
from manyheads.shapes import check_count


@dataclass(frozen=True, eq=False)
class Strided(Mask):
    """Each query sees its near neighbours and, beyond them, every ``stride``-th key.

    The paper's causal pattern is ``Causal() & Strided(stride)``: about 2 sqrt(length) keys where
    the stride is sqrt(length), and any token within two steps.

    Args:
        stride: Neighbours nearer than this are seen, and keys at its multiples.

    Raises:
        OptionError: If it is below 1.

    Source:
        Child et al. 2019 (arXiv:1904.10509), section 4.3.

    Example:
        >>> import manyheads as mh
        >>> print((mh.Causal() & mh.Strided(3)).draw(6))
        █·····
        ██····
        ███···
        ████··
        ·████·
        ··████
    """

    stride: int

    def __post_init__(self) -> None:
        check_count("stride", self.stride)

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        distance = (q.position - kv.position).abs()
        return (distance < self.stride) | (distance % self.stride == 0)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        nearest, farthest = q_lo - kv_hi, q_hi - kv_lo
        near = -self.stride < farthest and nearest < self.stride
        multiple = farthest // self.stride * self.stride >= nearest
        return near or multiple, -self.stride <= nearest and farthest <= self.stride


@dataclass(frozen=True, eq=False)
class Fixed(Mask):
    """Each query sees its own stretch of tokens, and the last few of every stretch.

    The paper's causal pattern is ``Causal() & Fixed(stride, summary)``.

    Args:
        stride: Tokens in a stretch.
        summary: How many tokens at the end of each stretch are seen by all.

    Raises:
        OptionError: If a number is below 1, or `summary` above `stride`.

    Source:
        Child et al. 2019 (arXiv:1904.10509), section 4.3.

    Example:
        >>> import manyheads as mh
        >>> print((mh.Causal() & mh.Fixed(3)).draw(6))
        █·····
        ██····
        ███···
        ··██··
        ··███·
        ··████
    """

    stride: int
    summary: int = 1

    def __post_init__(self) -> None:
        check_count("stride", self.stride)
        if check_count("summary", self.summary) > self.stride:
            raise OptionError(
                f"summary must be at most stride={self.stride}; got summary={self.summary}. A "
                f"stretch has no more tokens to be seen by all."
            )

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        own = q.position // self.stride == kv.position // self.stride
        return own | (kv.position % self.stride >= self.stride - self.summary)

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        own = q_lo // self.stride <= kv_hi // self.stride and kv_lo // self.stride <= (
            q_hi // self.stride
        )
        first = self.stride - self.summary
        # From kv_lo the next token that sums up its stretch stands at most so many tokens on.
        wait = max(first - kv_lo % self.stride, 0)
        one = q_lo // self.stride == q_hi // self.stride == kv_lo // self.stride
        same = one and kv_lo // self.stride == kv_hi // self.stride
        summaries = wait == 0 and kv_hi // self.stride == kv_lo // self.stride
        return own or kv_lo + wait <= kv_hi, same or summaries
