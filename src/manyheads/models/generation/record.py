"""What was written so far, row by row."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.models.generation.stop import Stop
from manyheads.models.generation.told import Told
from manyheads.models.generation.writer import Writer
from manyheads.shapes import check_count


@dataclass(frozen=True, eq=False)
class Step:
    """One token of each row, as it was written.

    Args:
        tokens: int (batch,); behind the end of a row what stands for no token, see `generate`.
        done: bool (batch,), which rows have ended, with this token or before.
        text: What can be told of each row since the last step; None if nothing decodes tokens.
        drafted: Whether the tokens were proposed by a draft model, of all rows at once.
    """

    tokens: Tensor
    done: Tensor
    text: tuple[str, ...] | None = None
    drafted: bool = False


class Record:
    """Which rows have ended, how long they are, which tokens they hold.

    Args:
        writer: Tells the prompt, and what a model itself ends with.
        stop: What else ends a text.
        min_new_tokens: No row ends before.
        max_new_tokens: Every row ends here.
        remember: Whether to keep account of the tokens that each row holds.
    """

    def __init__(
        self,
        writer: Writer,
        stop: Stop,
        min_new_tokens: int,
        max_new_tokens: int,
        *,
        remember: bool = False,
    ) -> None:
        check_ids_of(stop, writer.vocab_size)
        tokens = writer.prompt.tokens
        batch, device = len(tokens), tokens.device
        self.count, self.least, self.most = 0, min_new_tokens, max_new_tokens
        self.done = torch.zeros(batch, dtype=torch.bool, device=device)
        self._ends = torch.tensor([*stop.tokens, *writer.stop_tokens], dtype=torch.long).to(device)
        self._never = torch.tensor(writer.never, dtype=torch.long).to(device)
        self._pad = writer.pad_id
        self._told = None if stop.decode is None else [Told(stop) for _ in range(batch)]
        self.seen = _seen(writer) if remember else None

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be written."""
        return self.count == self.most or bool(self.done.all())

    def possible(self, logits: Tensor, ahead: int = 0) -> Tensor:
        """Logits of the token that comes after ``ahead`` more, without what must not come."""
        return hide(logits, self._never, self._ends if self.count + ahead < self.least else None)

    def add(self, tokens: Int[Tensor, " batch"], *, drafted: bool = False) -> Step:
        """Take in the next token of each row."""
        self.count += 1
        tokens = tokens.masked_fill(self.done, self._pad)
        ended = self.done | torch.isin(tokens, self._ends)
        self.seen = with_tokens(self.seen, tokens.clamp(min=0))
        text = None
        if self._told is not None:
            text = tuple(self._tell(tokens.tolist(), ended.tolist()))
            ended |= torch.tensor([told.ended for told in self._told], device=ended.device)
        self.done = ended
        return Step(tokens, ended, text, drafted)

    def _tell(self, tokens: list[int], ended: list[bool]) -> list[str]:
        assert self._told is not None
        texts = []
        for told, token, was_done, ends in zip(
            self._told, tokens, self.done.tolist(), ended, strict=True
        ):
            text = ""
            if not was_done:
                if not ends:  # a stop token is no part of the text
                    text = told.add(token, may_end=self.count >= self.least)
                if ends or self.count == self.most:
                    text += told.rest()
            texts.append(text)
        return texts


def with_tokens(seen: Tensor | None, tokens: Tensor) -> Tensor | None:
    """What each row has seen, bool (batch, vocab), and one token more."""
    return None if seen is None else seen.scatter(1, tokens[:, None], True)


def _seen(writer: Writer) -> Tensor:
    tokens, absent = writer.prompt.tokens, writer.prompt.absent
    counts = tokens.new_zeros(len(tokens), writer.vocab_size)
    there = torch.ones_like(tokens) if absent is None else (~absent).to(tokens.dtype)
    return counts.scatter_add(1, tokens, there) > 0


def hide(logits: Tensor, *tokens: Tensor | None) -> Tensor:
    """Logits with -inf for some tokens."""
    for ids in tokens:
        if ids is not None and ids.numel():
            logits = logits.index_fill(-1, ids, -torch.inf)
    return logits


def check_ids_of(stop: Stop, vocab_size: int) -> None:
    """Refuse stop tokens that no model of this vocabulary writes."""
    foreign = [token for token in stop.tokens if not 0 <= token < vocab_size]
    if foreign:
        raise OptionError(
            f"stop tokens must be ids from 0 to {vocab_size - 1}; got {foreign}. Is it the model's "
            f"own vocabulary?"
        )


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse what is no object of ours where one is asked for."""
    if not isinstance(value, kind):
        raise OptionError(
            f"{name} must be a {kind.__name__}(...); got {name}={value!r}. Write "
            f"{name}=mh.{kind.__name__}(...)."
        )


def check_lengths(max_new_tokens: int, min_new_tokens: int) -> None:
    """Refuse lengths that no text can have."""
    check_count("max_new_tokens", max_new_tokens, least=0)
    check_count("min_new_tokens", min_new_tokens, least=0)
    if min_new_tokens > max_new_tokens:
        raise OptionError(
            f"min_new_tokens must be at most max_new_tokens={max_new_tokens}; got min_new_tokens="
            f"{min_new_tokens}. Ask for more, or demand less."
        )
