"""The numbers of a decoder-only model."""

import math
from dataclasses import dataclass
from typing import Literal

from manyheads.errors import OptionError
from manyheads.layers.feed_forward import Activation
from manyheads.layers.norm import NormKind
from manyheads.layers.projections import ProjectionBias
from manyheads.positions import Scaling
from manyheads.shapes import check_count, check_probability, is_number


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The numbers of a `Decoder`; the defaults are the manner of Llama.

    Args:
        vocab_size: How many kinds of tokens there are.
        d_model: Width of the stream.
        num_heads: Query heads of each attention.
        num_layers: How many layers there are.
        d_hidden: Width inside of the feed-forward networks.
        num_kv_heads: Key and value heads; None = `num_heads`.
        head_dim: Width of a head; None = ``d_model / num_heads``.
        norm: "layer", as in GPT-2, or "rms", as in Llama.
        eps: Added to the variance by every norm.
        activation: Of the feed-forward networks.
        bias: Whether linear maps add a bias: all, none, or those of queries, keys and values.
        positions: How tokens know where they are.
        rotary_base: Of rotary positions.
        rotary_scaling: Of rotary positions.
        max_length: The longest text, in tokens; None for no maximum, which learned positions need.
        window: How many tokens each sees, itself included; None = all before it.
        tied: Whether the output's matrix is that of the embedding.
        dropout: Share to drop in training, of embeddings, weights and what sublayers add.

    Raises:
        OptionError: If a number is out of range, or two do not go together.

    Source:
        Radford et al. 2019 (GPT-2); Touvron et al. 2023 (Llama, arXiv:2302.13971).

    Example:
        >>> import manyheads as mh
        >>> mh.DecoderConfig(
        ...     vocab_size=99, d_model=64, num_heads=4, num_layers=2, d_hidden=128
        ... ).norm
        'rms'
        >>> mh.DecoderConfig.preset("llama-3.2-1b").num_kv_heads
        8
    """

    vocab_size: int
    d_model: int
    num_heads: int
    num_layers: int
    d_hidden: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    norm: NormKind = "rms"
    eps: float = 1e-5
    activation: Activation = "swiglu"
    bias: ProjectionBias = False
    positions: Literal["learned", "rotary"] = "rotary"
    rotary_base: float = 10000.0
    rotary_scaling: Scaling | None = None
    max_length: int | None = None
    window: int | None = None
    tied: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_heads", "num_layers", "d_hidden"):
            check_count(name, getattr(self, name))
        for name in ("max_length", "window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if not is_number(self.eps) or not 0 < self.eps < math.inf:
            raise OptionError(
                f"eps must be a finite number above 0; got eps={self.eps!r}. 1e-5 is usual."
            )
        check_probability("dropout", self.dropout)
        if self.positions not in ("learned", "rotary"):
            raise OptionError(
                f"positions must be 'learned' or 'rotary'; got positions={self.positions!r}. GPT-2 "
                f"has 'learned', Llama 'rotary'."
            )
        if self.positions == "learned" and self.max_length is None:
            raise OptionError(
                "max_length must be given with learned positions; got max_length=None. It is how "
                "many of them are learned: 1024 in GPT-2."
            )
        if self.positions == "learned" and self.rotary_scaling is not None:
            raise OptionError(
                f"rotary_scaling must go with positions='rotary'; got positions='learned', "
                f"rotary_scaling={self.rotary_scaling}. Leave it out."
            )

    @staticmethod
    def preset(name: str) -> "DecoderConfig":
        """The numbers of a published model, or of a small one; `PRESETS` has all names.

        Raises:
            OptionError: If there is none of this name.
        """
        from manyheads.models.presets import preset

        return preset(name)
