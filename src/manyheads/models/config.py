"""The numbers of a model."""

from dataclasses import dataclass
from typing import Literal

from manyheads.errors import OptionError
from manyheads.layers.feed_forward import Activation
from manyheads.layers.residual import Norm
from manyheads.shapes import check_count


@dataclass(frozen=True)
class TransformerConfig:
    """The numbers of a `Transformer`; the defaults are the base model of the paper.

    Args:
        source_vocab: How many kinds of source tokens there are.
        target_vocab: How many kinds of target tokens there are.
        d_model: Width of the stream.
        num_heads: Query heads of each attention.
        num_kv_heads: Key and value heads; None = `num_heads`.
        num_encoder_layers: How many layers read the source.
        num_decoder_layers: How many layers write the target.
        d_hidden: Width inside of the feed-forward networks.
        dropout: Share to drop in training, of embeddings and of what sublayers add.
        norm: "post", as in the paper, or "pre".
        activation: Of the feed-forward networks.
        positions: How tokens know where they are.
        max_length: The longest sequence, for learned positions; others need no maximum.
        tied: Which matrices are one: the target's embedding and the output's ("target"), those and
            the source's ("all", as in the paper), or none.
        pad_id: The token that stands for no token.
        bos_id: The token that every target begins with.
        eos_id: The token that every target ends with.

    Raises:
        OptionError: If a number is out of range, or two do not go together.

    Example:
        >>> import manyheads as mh
        >>> mh.TransformerConfig(source_vocab=8000, target_vocab=8000).d_model
        512
    """

    source_vocab: int
    target_vocab: int
    d_model: int = 512
    num_heads: int = 8
    num_kv_heads: int | None = None
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_hidden: int = 2048
    dropout: float = 0.1
    norm: Norm = "post"
    activation: Activation = "relu"
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_length: int = 512
    tied: Literal["none", "target", "all"] = "target"
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        for name in ("source_vocab", "target_vocab", "d_model", "num_heads", "d_hidden"):
            check_count(name, getattr(self, name))
        for name in ("num_encoder_layers", "num_decoder_layers"):
            check_count(name, getattr(self, name), least=0)
        if self.positions not in ("sinusoidal", "learned", "rotary"):
            raise OptionError(
                f"positions must be 'sinusoidal', 'learned' or 'rotary'; got "
                f"positions={self.positions!r}. The paper of 2017 uses 'sinusoidal'."
            )
        if self.tied not in ("none", "target", "all"):
            raise OptionError(
                f"tied must be 'none', 'target' or 'all'; got tied={self.tied!r}. The paper of "
                f"2017 ties all."
            )
        if self.tied == "all" and self.source_vocab != self.target_vocab:
            raise OptionError(
                f"tied='all' must have one vocabulary; got source_vocab={self.source_vocab}, "
                f"target_vocab={self.target_vocab}. Use tied='target'."
            )
        for name in ("pad_id", "bos_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.target_vocab:
                raise OptionError(
                    f"{name} must be below target_vocab={self.target_vocab}; got "
                    f"{name}={getattr(self, name)}. Special tokens are part of the vocabulary."
                )
        if self.pad_id in (self.bos_id, self.eos_id):
            raise OptionError(
                f"pad_id must differ from bos_id={self.bos_id} and eos_id={self.eos_id}; got "
                f"pad_id={self.pad_id}. What stands for no token is neither read nor written."
            )
