"""LongRoPE: each pair has a factor of its own, searched for rather than computed."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.positions.angles import frequencies
from manyheads.positions.scaling import Scaling, check_factor
from manyheads.shapes import check_count


@dataclass(frozen=True)
class LongRoPE(Scaling):
    """Divide each pair's frequency by a factor of its own: one row for short texts, one for long.

    Cosines and sines are multiplied by ``gain = sqrt(1 + ln(factor) / ln(original_length))``.

    How ours differs: when a text outgrows the original length, cached keys turn anew (a layer
    caches them unturned), and each row of a batch has its own length.

    Args:
        short: A factor for each pair, for texts of at most the original length.
        long: A factor for each pair, for longer texts.
        original_length: Tokens that the model was trained on first.
        factor: How many times longer texts may be; it decides the gain alone.

    Source:
        Ding et al. 2024, section 3 (arXiv:2402.13753); as in Phi-3.

    Example:
        >>> scaling = LongRoPE((1.0, 1.0), (1.5, 20.0), original_length=4096, factor=32.0)
        >>> scaling.frequencies_at(4, 10000.0, torch.tensor([4096.0, 4097.0]))
        tensor([[1.0000e+00, 1.0000e-02],
                [6.6667e-01, 5.0000e-04]], dtype=torch.float64)
        >>> round(scaling.gain, 6)
        1.190238
    """

    depends_on_length: ClassVar[bool] = True

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_length: int
    factor: float

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)
        check_count("original_length", self.original_length, least=2)
        for name in ("short", "long"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # a config has lists
            if not all(0 < factor < math.inf for factor in getattr(self, name)):
                raise OptionError(
                    f"{name} must hold finite numbers above 0; got {name}={getattr(self, name)}. "
                    f"Each divides the frequency of a pair."
                )

    @property
    def gain(self) -> float:
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    def frequencies_at(
        self, width: int, base: float, length: Float[Tensor, " rows"]
    ) -> Float[Tensor, "rows pairs"]:
        plain = frequencies(width, base)
        if not len(self.short) == len(self.long) == len(plain):
            raise OptionError(
                f"short and long must have a factor for each of {len(plain)} pairs; got "
                f"{len(self.short)} and {len(self.long)}. Give Rotary the rotary_dim that they "
                f"were made for."
            )
        rows = [
            torch.tensor(
                [f / factor for f, factor in zip(plain, factors, strict=True)],
                dtype=torch.float64,
                device=length.device,
            )
            for factors in (self.short, self.long)
        ]
        return torch.where((length > self.original_length)[:, None], rows[1], rows[0])
