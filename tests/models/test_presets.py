import pytest

import manyheads as mh
from manyheads.errors import OptionError
from manyheads.models import PRESETS

# Parameters, as the checkpoints on Hugging Face hold them.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_as_many_parameters_as_the_model_of_its_name(name: str) -> None:
    decoder = mh.Decoder(mh.DecoderConfig.preset(name), device="meta")
    count = sum(parameter.numel() for parameter in decoder.parameters())
    assert count == {**PUBLISHED, "tiny": 5_712, "small": 791_680}[name]


def test_an_unknown_name_is_answered_with_a_near_one() -> None:
    with pytest.raises(OptionError, match=r"a preset must be one of .*'llama-3-8'\. Did you mean"):
        mh.DecoderConfig.preset("llama-3-8")
    with pytest.raises(OptionError, match=r"got '!'\. Choose one"):
        mh.DecoderConfig.preset("!")
