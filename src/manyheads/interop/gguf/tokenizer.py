"""The tokenizer in a GGUF file, as one of the `tokenizers` library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.errors import MissingExtraError, OptionError
from manyheads.extras import install_line
from manyheads.interop.gguf.file import GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

CONTROL = 3
"""The kind of a token that no text spells, such as the end of a turn."""


def tokenizer_of(file: GGUFFile) -> Tokenizer:
    """The byte-level BPE tokenizer of a model; it adds no tokens of its own.

    Raises:
        MissingExtraError: If the `tokenizers` library is missing.
        OptionError: If the tokenizer is of another kind.
        CheckpointError: If the file has none.
    """
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models
    except ImportError:
        raise MissingExtraError(
            f"a tokenizer must find the tokenizers library; got tokenizers=missing. Run: "
            f"{install_line('smollm2')}"
        ) from None
    kind, splitting = file["tokenizer.ggml.model"], file["tokenizer.ggml.pre"]
    if kind != "gpt2" or splitting not in ("gpt-2", "smollm"):
        raise OptionError(
            f"a GGUF tokenizer must be 'gpt2' that splits as 'gpt-2' or 'smollm'; got {kind!r}, "
            f"{splitting!r}. Take the model's own tokenizer.json."
        )
    tokens = file["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in file["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _splitter(splitting)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False)
         for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    )  # fmt: skip
    return tokenizer


def _splitter(name: str) -> PreTokenizer:
    from tokenizers import pre_tokenizers

    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "gpt-2":
        return bytewise
    # SmolLM reads numbers digit by digit.
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytewise])
