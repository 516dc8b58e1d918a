"""YaRN: slow pairs are stretched, fast ones kept, and scores sharpened."""

import math
from dataclasses import dataclass
from typing import Literal

from manyheads.errors import OptionError
from manyheads.positions.angles import frequencies
from manyheads.positions.scaling import Scaling, check_factor
from manyheads.shapes import check_count

Ramp = Literal["rounded", "unrounded", "turns"]
RAMPS: tuple[Ramp, ...] = ("rounded", "unrounded", "turns")


@dataclass(frozen=True)
class YaRN(Scaling):
    """Stretch slow pairs, keep fast ones, blend those between, and sharpen the scores.

    Pair i turns ``original_length * f_i / 2 pi`` times in the original length. Above ``fast`` turns
    it is kept, below ``slow`` it is divided by ``factor``.

    The temperature t of the paper is applied once: cosines and sines are multiplied by
    ``gain = 1 / sqrt(t) = 0.1 ln(factor) + 1``, so scores by its square. DeepSeek moves it, in
    whole or part, to the scale of all scores: ``mscale_all`` is divided out of the gain, and
    `score_factor` says what the layer multiplies its scale by (`MultiHeadAttention` does).

    How others differ, which is why the ramp has a name: ``"rounded"`` runs over the index of the
    pair, between ends rounded outwards (Hugging Face, DeepSeek, the authors' code);
    ``"unrounded"`` keeps the ends as they are (gpt-oss, Hugging Face's ``truncate=False``);
    ``"turns"`` runs over the turns themselves, as the paper's equation 18 reads.

    Args:
        factor: How many times longer than in training texts may be, at least 1.
        original_length: Tokens that the model was trained on.
        fast: Turns in the original length, above which a pair is kept.
        slow: Turns, below which it is stretched fully.
        ramp: How those between are blended.
        ramp_end: The ramp ends at the latest at the index of the last "feature" (Hugging Face,
            DeepSeek), or of the last "pair"; read by the two ramps over the index.
        mscale: How much sharpening there is; 0 for none.
        mscale_all: How much of it goes to the scale of all scores instead.

    Source:
        Peng et al. 2023, sections 3.2 to 3.4 (arXiv:2309.00071); ``mscale`` as in DeepSeek-V2
        (arXiv:2405.04434).

    Example:
        >>> scaling = YaRN(factor=4.0, original_length=2048)
        >>> round(scaling.gain, 6), scaling.score_factor
        (1.138629, 1.0)
        >>> deepseek = YaRN(factor=40.0, original_length=4096, mscale_all=1.0)
        >>> deepseek.gain, round(deepseek.score_factor, 6)
        (1.0, 1.873854)
    """

    factor: float
    original_length: int
    fast: float = 32.0
    slow: float = 1.0
    ramp: Ramp = "rounded"
    ramp_end: Literal["feature", "pair"] = "feature"
    mscale: float = 1.0
    mscale_all: float = 0.0

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)
        check_count("original_length", self.original_length)
        if self.ramp not in RAMPS or self.ramp_end not in ("feature", "pair"):
            raise OptionError(
                f"ramp must be one of {', '.join(RAMPS)}, and ramp_end 'feature' or 'pair'; got "
                f"ramp={self.ramp!r}, ramp_end={self.ramp_end!r}. Most models have the default."
            )
        if not 0 < self.slow < self.fast < math.inf:
            raise OptionError(
                f"slow must be above 0 and below fast; got slow={self.slow!r}, "
                f"fast={self.fast!r}. The paper has slow=1.0, fast=32.0."
            )

    @property
    def gain(self) -> float:
        return self._sharpening(self.mscale) / self._sharpening(self.mscale_all)

    @property
    def score_factor(self) -> float:
        return self._sharpening(self.mscale_all) ** 2

    def _sharpening(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    def frequencies(self, width: int, base: float) -> tuple[float, ...]:
        plain = frequencies(width, base)
        if self.ramp == "turns":
            kept = [self._kept_by_turns(f) for f in plain]
        else:
            kept = self._kept_by_index(width, base)
        return tuple(
            f * share + f / self.factor * (1 - share) for f, share in zip(plain, kept, strict=True)
        )

    def _kept_by_turns(self, frequency: float) -> float:
        turns = self.original_length * frequency / (2 * math.pi)
        return _clamped((turns - self.slow) / (self.fast - self.slow))

    def _kept_by_index(self, width: int, base: float) -> list[float]:
        first, last = (self._index_of(turns, width, base) for turns in (self.fast, self.slow))
        if self.ramp == "rounded":
            first, last = math.floor(first), math.ceil(last)
        end = width - 1 if self.ramp_end == "feature" else width // 2 - 1
        first, last = max(first, 0), min(last, end)
        # Where both ends meet the ramp is a step; the others have this small number there too.
        slope = max(last - first, 0.001)
        return [1.0 - _clamped((i - first) / slope) for i in range(width // 2)]

    def _index_of(self, turns: float, width: int, base: float) -> float:
        # base ** (-2i / width) * original_length = 2 pi turns, solved for i
        if base == 1:
            raise OptionError(
                "base must be above 1 for YaRN with a ramp over the index; got base=1. All pairs "
                "would turn alike."
            )
        stretch = self.original_length / (turns * 2 * math.pi)
        return width * math.log(stretch) / (2 * math.log(base))


def _clamped(share: float) -> float:
    return min(max(share, 0.0), 1.0)
