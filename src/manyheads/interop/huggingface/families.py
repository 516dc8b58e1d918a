"""The families of models that we can be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from manyheads.errors import OptionError
from manyheads.interop.huggingface import gpt2, llama
from manyheads.models import DecoderConfig


@dataclass(frozen=True)
class Family:
    """Models whose weights bear the same names.

    Args:
        config: Our numbers from theirs.
        names: Our modules' names by theirs, without the prefix; ``{}`` is the layer.
        prefix: What stands before the names of all but the output.
        ignored: Their names of what a decoder does without.
        transposed: Whether the matrices of layers are stored as (inputs, outputs).
    """

    config: Callable[[Mapping[str, Any]], DecoderConfig]
    names: Mapping[str, str]
    prefix: str = "model."
    ignored: tuple[str, ...] = ("layers.{}.self_attn.rotary_emb.inv_freq",)
    transposed: bool = False


FAMILIES: dict[str, Family] = {
    "gpt2": Family(gpt2.config, gpt2.NAMES, "transformer.", gpt2.IGNORED, transposed=True),
    "llama": Family(llama.config, llama.NAMES),
    "mistral": Family(llama.mistral_config, llama.NAMES),
    "qwen2": Family(llama.qwen2_config, llama.NAMES),
}
"""Every family by what configs call its ``model_type``; SmolLM and SmolLM2 are of "llama"."""


def family_of(numbers: Mapping[str, Any]) -> Family:
    """The family that a config names.

    Raises:
        OptionError: If it is none of ours.
    """
    kind = numbers.get("model_type")
    if kind not in FAMILIES:
        raise OptionError(
            f"a model must be one of {', '.join(FAMILIES)}; got model_type={kind!r}. Others need a "
            f"Decoder of their own numbers and a table of names."
        )
    return FAMILIES[kind]
