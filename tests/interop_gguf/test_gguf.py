import builtins
import dataclasses
from pathlib import Path

import pytest
import torch
from tests.interop_gguf.files import CONFIG, write
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import CheckpointError, MissingExtraError, OptionError
from manyheads.interop.gguf import from_gguf, read_gguf, tokenizer_of

TOKENS = torch.tensor([[5, 99, 7, 250, 0, 3]])


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_a_decoder_comes_back_from_its_file(tied: bool, tmp_path: Path) -> None:
    decoder = mh.Decoder(dataclasses.replace(CONFIG, tied=tied)).eval()
    for parameter in decoder.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
    found = from_gguf(write(tmp_path / "model.gguf", decoder, tied=tied))
    assert_close(found(TOKENS), decoder(TOKENS), rtol=0, atol=1e-6)
    assert not found.training
    half = from_gguf(tmp_path / "model.gguf", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_the_tokenizer_spells_and_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", mh.Decoder(CONFIG))
    tokenizer = tokenizer_of(read_gguf(path))
    text = "hello  42\n日本<|im_end|>"
    tokens = tokenizer.encode(text).tokens
    assert tokens[:3] == ["he", "ll", "o"]
    assert tokens[5:7] == ["4", "2"]
    assert tokens[-1] == "<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_what_no_file_of_ours_says_is_refused(tmp_path: Path) -> None:
    decoder = mh.Decoder(CONFIG)
    for change, error, rule in [
        ({"architecture": "gemma"}, OptionError, "of the architecture llama; got 'gemma'"),
        (
            {"scaling": "yarn"},
            OptionError,
            r"llama\.rope\.scaling\.type must be 'none'; got 'yarn'",
        ),
        ({"more": "rope_freqs"}, CheckpointError, r"got 1 unknown: rope_freqs\.weight"),
    ]:
        with pytest.raises(error, match=rule):
            from_gguf(write(tmp_path / "model.gguf", decoder, **change))
    file = read_gguf(write(tmp_path / "model.gguf", decoder, pre="qwen2"))
    with pytest.raises(OptionError, match="must be 'gpt2' that splits as 'gpt-2' or 'smollm'"):
        tokenizer_of(file)
    with pytest.raises(CheckpointError, match=r"a GGUF file must say llama\.vision; got one that"):
        file["llama.vision"]
    for path in (tmp_path / "nowhere.gguf", tmp_path / "damaged.gguf"):
        with pytest.raises(CheckpointError, match="a GGUF file must be there and whole; got"):
            read_gguf(path)
        (tmp_path / "damaged.gguf").write_bytes(b"GGUFnothing of the kind")


@pytest.mark.parametrize("library", ["gguf", "tokenizers"])
def test_a_missing_library_is_named_with_its_cure(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = read_gguf(write(tmp_path / "model.gguf", mh.Decoder(CONFIG)))
    real = builtins.__import__

    def without(name: str, *others: object) -> object:
        if name.split(".")[0] == library:
            raise ImportError
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=rf"got {library}=missing\. Run: pip install "):
        tokenizer_of(file)
        read_gguf(tmp_path / "model.gguf")
