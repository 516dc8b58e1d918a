"""How the next token is chosen from the logits of a step."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.models.generation.draw import Draws, draw_shares, draw_tokens
from manyheads.shapes import check_count, is_number, values_are_cheap


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest one, or a draw from those that filters leave.

    In this order: the repetition penalty, the temperature, top-k, top-p among what is left, min-p.
    Each filter keeps whatever is exactly as likely as the last token that it keeps, so that no
    answer depends on the order of a vocabulary; the likeliest token always stays. Shares are
    computed in float64.

    Args:
        temperature: 0 takes the likeliest token, the first of several; above, logits are divided
            by it.
        top_k: How many of the likeliest tokens stay; None = all.
        top_p: The fewest likeliest tokens stay whose shares add up to this; None = all.
        min_p: Tokens stay that are at least this share as likely as the likeliest; None = all.
        repetition_penalty: Logits of tokens that the text holds already are divided by it where
            they are positive and multiplied where negative; None = left alone.

    Raises:
        OptionError: If a number is out of range.

    Source:
        top-k: Fan et al. 2018 (arXiv:1805.04833); top-p: Holtzman et al. 2020, section 3.1
        (arXiv:1904.09751); min-p: Nguyen et al. 2024 (arXiv:2407.01082); repetition penalty:
        Keskar et al. 2019, section 4.1 (arXiv:1909.05858).

    Example:
        >>> import torch, manyheads as mh
        >>> logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
        >>> mh.Sampling(temperature=1.0, top_k=2).weights(logits)
        tensor([[0.0000, 0.0000, 0.4286, 0.5714]], dtype=torch.float64)
        >>> mh.Sampling().weights(logits)  # greedy
        tensor([[0., 0., 0., 1.]], dtype=torch.float64)
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, math.inf, "0 takes the likeliest token.")
        if self.top_k is not None:
            check_count("top_k", self.top_k)
        for name in ("top_p", "min_p"):
            share = getattr(self, name)
            if share is not None:
                _check(name, share, 0.0, math.nextafter(1, 2), "It is a share; None keeps all.")
        if self.repetition_penalty is not None:
            why = "1 changes nothing, 1.2 discourages; None leaves it out."
            _check("repetition_penalty", self.repetition_penalty, math.ulp(0), math.inf, why)

    def weights(
        self,
        logits: Float[Tensor, "batch vocab"],
        seen: Bool[Tensor, "batch vocab"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """The share that each token has in the draw, in float64.

        Args:
            logits: Of the next token; -inf for what cannot be.
            seen: Which tokens the text holds already.

        Raises:
            OptionError: If a row has no possible token, or holds NaN.
        """
        logits = self._penalised(logits, seen)
        if self.temperature == 0:
            return torch.zeros_like(logits).scatter(1, logits.argmax(1, keepdim=True), 1.0)
        top = logits.amax(dim=-1, keepdim=True)
        # Less the greatest, so that no temperature however small makes two of them infinite.
        logits = torch.where(logits == top, 0.0, logits - top) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            last = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < last, -torch.inf)
        if self.top_p is not None:
            logits = _nucleus(logits, self.top_p)
        if self.min_p:
            logits = logits.masked_fill(logits < math.log(self.min_p), -torch.inf)
        return logits.softmax(dim=-1)

    def pick(
        self,
        logits: Float[Tensor, "batch vocab"],
        seen: Bool[Tensor, "batch vocab"] | None = None,
        draws: Draws = None,
    ) -> Int[Tensor, " batch"]:
        """The next token of each row; see `weights`.

        Args:
            logits: Of the next token.
            seen: Which tokens the text holds already.
            draws: Where random numbers come from.
        """
        if self.temperature == 0 and self.repetition_penalty is None:
            check_possible(logits)
            # torch finds the greatest of 16-bit numbers in four times the time of widened ones.
            return (logits.float() if logits.dtype.itemsize < 4 else logits).argmax(dim=-1)
        if self.temperature == 0:
            return self._penalised(logits, seen).argmax(dim=-1)
        return draw_tokens(self.weights(logits, seen), draws)

    def draw(self, weights: Float[Tensor, "batch vocab"], draws: Draws) -> Int[Tensor, " batch"]:
        """A token of each row by weights that came from here; the likeliest if greedy."""
        return weights.argmax(dim=-1) if self.temperature == 0 else draw_tokens(weights, draws)

    def accept(self, share: Float[Tensor, " batch"], draws: Draws) -> Bool[Tensor, " batch"]:
        """Whether each row takes what has this share of being taken; 0 or 1 if greedy."""
        if self.temperature == 0:
            return share > 0
        return draw_shares(len(share), draws, share.device) < share

    def _penalised(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        check_possible(logits)
        logits = logits.double()
        if self.repetition_penalty is None or seen is None:
            return logits
        penalty = self.repetition_penalty
        return torch.where(
            seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits
        )


def _nucleus(logits: Tensor, share: float) -> Tensor:
    ordered = logits.sort(dim=-1, descending=True).values
    shares = ordered.softmax(dim=-1)
    kept = shares.cumsum(dim=-1) - shares < share
    kept[:, 0] = True
    last = ordered.masked_fill(~kept, torch.inf).amin(dim=-1, keepdim=True)
    return logits.masked_fill(logits < last, -torch.inf)


def _check(name: str, value: object, least: float, below: float, why: str) -> None:
    if not is_number(value) or not least <= value < below:  # type: ignore[operator]
        rule = "a finite number of at least 0" if below == math.inf else "a number from 0 to 1"
        if least:
            rule = "a finite number above 0"
        raise OptionError(f"{name} must be {rule}; got {name}={value!r}. {why}")


def check_possible(logits: Tensor) -> None:
    """Refuse logits of which a row leaves nothing, or holds NaN."""
    if not values_are_cheap(logits):
        return
    top = logits.amax(dim=-1)
    if (top == -torch.inf).any() or top.isnan().any():
        raise OptionError(
            f"logits must leave each row a possible token and hold no NaN; got the greatest of "
            f"each row = {top.tolist()[:8]}. Does a stop token leave nothing else to write, or "
            f"has the model diverged?"
        )
