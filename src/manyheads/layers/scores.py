"""What a layer makes of its scores between the product of queries and keys and the softmax."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manyheads.errors import OptionError
from manyheads.functional import attention, attention_with_weights
from manyheads.masks import Bound
from manyheads.positions import Bias, Rotary
from manyheads.shapes import is_number


@dataclass(frozen=True)
class Scores:
    """How a layer's scores differ from q.k / sqrt(head_dim).

    They are softcap(scale * head_scale * q.k); bias and mask follow, then sinks, then softmax.
    One object serves any number of layers: what is learned belongs to each layer, as its
    parameters ``head_scale`` and ``sink_logits``.

    How others differ: gpt-oss and Hugging Face call the sink logits ``sinks``; Gemma-2 gives the
    scale by ``query_pre_attn_scalar ** -0.5``; T5 has a scale of 1.

    Args:
        scale: Multiplies all scores; None = ``head_dim ** -0.5``. A rotary whose scaling sharpens
            scores (`YaRN`) multiplies it once more.
        softcap: Bounds scores smoothly to plus and minus this number.
        head_scale: Whether each query head learns a further scale, which begins at 1.
        sinks: Whether each query head learns a logit that takes weight and gives nothing, which
            begins at 0: weights then sum to less than 1, and a head can rest.

    Raises:
        OptionError: If a number is out of range.

    Source:
        Softcap, Gemma Team 2024 (arXiv:2408.00118); a learned scale, Henry et al. 2020
        (arXiv:2010.04245); sinks, gpt-oss, OpenAI 2025 (arXiv:2508.10925).

    Example:
        >>> import torch, manyheads as mh
        >>> scores = mh.Scores(softcap=50.0, sinks=True)
        >>> layer = mh.MultiHeadAttention(16, 4, scores=scores)
        >>> _, weights = layer.with_weights(torch.zeros(1, 3, 16))
        >>> weights.detach().sum(-1)[0, 0]  # of four equal logits one is the sink's
        tensor([0.7500, 0.7500, 0.7500])
    """

    scale: float | None = None
    softcap: float | None = None
    head_scale: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        if self.scale is not None and not _is_finite(self.scale):
            raise OptionError(
                f"scale must be a finite number; got scale={self.scale!r}. Leave it out for "
                f"head_dim ** -0.5; head_scale=True learns one for each head."
            )
        if self.softcap is not None and not (_is_finite(self.softcap) and self.softcap > 0):
            raise OptionError(
                f"softcap must be a finite number above 0; got softcap={self.softcap!r}. Leave it "
                f"out for scores without a bound."
            )

    def scale_for(self, head_dim: int, rotary: Rotary | None) -> float:
        """What multiplies the scores of heads of this width."""
        scale = head_dim**-0.5 if self.scale is None else float(self.scale)
        return scale if rotary is None else scale * rotary.score_factor

    def parameters(
        self, num_heads: int, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> tuple[nn.Parameter | None, nn.Parameter | None]:
        """What a layer learns of its sinks and scales, not yet begun; None where it does not."""
        sinks, scales = (
            nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype)) if learned else None
            for learned in (self.sinks, self.head_scale)
        )
        return sinks, scales


def checked_scores(scores: Scores | None) -> Scores:
    """The scores of a layer: as given, or the usual ones."""
    if scores is None:
        return Scores()
    if not isinstance(scores, Scores):
        raise OptionError(
            f"scores must be an object Scores(...); got scores={scores!r}. Write "
            f"scores=Scores(softcap=50.0), for one."
        )
    return scores


def begin_scores(sink_logits: nn.Parameter | None, head_scale: nn.Parameter | None) -> None:
    """Fill what a layer learns of its scores with the first numbers."""
    if sink_logits is not None:
        nn.init.zeros_(sink_logits)
    if head_scale is not None:
        nn.init.ones_(head_scale)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Bound | None,
    *,
    bias: Tensor | Bias | None,
    scale: float,
    softcap: float | None = None,
    sink_logits: Tensor | None = None,
    dropout: float,
    weights_into: list[Tensor] | None,
) -> Tensor:
    """A layer's one call of `attention`, which gives its weights to a list if there is one."""
    if weights_into is None:
        return attention(
            q, k, v, mask, bias=bias, scale=scale, softcap=softcap, sink_logits=sink_logits,
            dropout=dropout,
        )  # fmt: skip
    mixed, weights = attention_with_weights(
        q, k, v, mask, bias=bias, scale=scale, softcap=softcap, sink_logits=sink_logits,
        dropout=dropout,
    )  # fmt: skip
    weights_into.append(weights)
    return mixed


def _is_finite(value: object) -> bool:
    return is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
