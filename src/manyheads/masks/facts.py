"""What is known of each token: its place, whether it is there at all, and its marks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from manyheads.errors import MaskError
from manyheads.shapes import Positions, check_positions


@dataclass(frozen=True, eq=False)
class Tokens:
    """What is known of the tokens on one side of a call.

    Args:
        length: How many tokens each sequence has.
        position: The first position of a run, or a tensor (length,) or (batch, length), in tokens.
        absent: bool (batch or 1, length), True where there is no token; None if all are there.
        marks: Facts by name, each (batch or 1, length), such as the document of each token.
        device: Where tensors made from these facts go.
    """

    length: int
    position: int | Tensor = 0
    absent: Tensor | None = None
    marks: Mapping[str, Tensor] = field(default_factory=dict)
    device: torch.device | None = None

    @classmethod
    def given(
        cls, name: str, positions: Positions, batch: int, length: int, device: torch.device | None
    ) -> "Tokens":
        """The tokens of a call, from the positions that its caller gave.

        A position below 0 says that there is no token.
        """
        if positions is None:
            return cls(length, 0, device=device)
        position = check_positions(name, positions, batch, length)
        if isinstance(position, Tensor):
            # The narrow and the unsigned would wrap where rules subtract them.
            position = position.to(device=device, dtype=torch.int64)
            return cls(length, position, absent_where(position), device=device)
        if position < 0:
            position = torch.arange(position, position + length, device=device)
            return cls(length, position, absent_where(position), device=device)
        return cls(length, position, device=device)

    @property
    def is_run(self) -> bool:
        """Whether the positions are one run that an int describes."""
        return not isinstance(self.position, Tensor)

    def positions(self) -> Tensor:
        """The positions as a tensor (length,) or (batch, length)."""
        if isinstance(self.position, Tensor):
            return self.position
        return torch.arange(self.position, self.position + self.length, device=self.device)

    def facts(self) -> Iterator[Tensor]:
        """The facts that may differ between sequences, each (batch or 1, length)."""
        if isinstance(self.position, Tensor) and self.position.ndim == 2:
            yield self.position
        if self.absent is not None:
            yield self.absent
        yield from self.marks.values()

    def next_position(self) -> int | Tensor:
        """The position after the last token: an int, or (batch or 1, 1) where rows may differ."""
        if self.is_run and self.absent is None:
            return self.position + self.length
        positions = _two_dim(self.positions())
        if self.absent is not None:
            positions = positions.masked_fill(self.absent, -1)
        if self.length == 0:
            return positions.new_zeros(positions.shape[0], 1)
        return positions.amax(dim=1, keepdim=True).clamp(min=-1) + 1

    def follow(self, length: int) -> "Tokens":
        """The next ``length`` tokens."""
        first = self.next_position()
        if isinstance(first, Tensor):
            first = first + torch.arange(length, device=first.device)
        return Tokens(length, first, device=self.device)

    def first(self, length: int) -> "Tokens":
        """The first ``length`` of these tokens."""
        position = self.position if self.is_run else self.positions()[..., :length]
        absent = None if self.absent is None else self.absent[:, :length]
        marks = {name: mark[:, :length] for name, mark in self.marks.items()}
        return Tokens(length, position, absent, marks, self.device)

    def rows(self, index: Tensor) -> "Tokens":
        """The tokens of the sequences in ``index``, int (batch,)."""
        position = self.position
        if isinstance(position, Tensor) and position.ndim == 2:
            position = _rows(position, index)
        absent = None if self.absent is None else _rows(self.absent, index)
        marks = {name: _rows(mark, index) for name, mark in self.marks.items()}
        return Tokens(self.length, position, absent, marks, self.device)

    def to(self, device: torch.device | str) -> "Tokens":
        """These facts on another device."""
        position = self.position.to(device) if isinstance(self.position, Tensor) else self.position
        absent = None if self.absent is None else self.absent.to(device)
        marks = {name: mark.to(device) for name, mark in self.marks.items()}
        return Tokens(self.length, position, absent, marks, torch.device(device))

    def with_absent(self, absent: Tensor | None) -> "Tokens":
        """These tokens, less those in ``absent``, bool (batch or 1, length)."""
        if absent is None:
            return self
        both = absent if self.absent is None else self.absent | absent
        return Tokens(self.length, self.position, both, self.marks, self.device)

    def with_marks(self, marks: Mapping[str, Tensor]) -> "Tokens":
        """These tokens with other marks."""
        return Tokens(self.length, self.position, self.absent, marks, self.device)

    def side(self, axis: int, pairs: Mapping[str, Tensor] | None = None) -> "Side":
        """These facts, shaped to broadcast against the other side's (batch, heads, q_len, kv_len).

        Args:
            axis: -2 for queries, -1 for keys.
            pairs: Facts of whole pairs, already of four dimensions.
        """
        marks = {name: _spread(mark, axis) for name, mark in self.marks.items()}
        return Side(_spread(self.positions(), axis), {**marks, **(pairs or {})})


@dataclass(frozen=True, eq=False)
class Side:
    """What a rule reads of the queries or of the keys; every tensor broadcasts to the pairs."""

    position: Tensor
    marks: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.marks[name]


def _spread(fact: Tensor, axis: int) -> Tensor:
    fact = _two_dim(fact)
    # (batch or 1, length) -> (batch or 1, 1, length, 1) for queries, (..., 1, 1, length) for keys
    return fact[:, None, :, None] if axis == -2 else fact[:, None, None, :]


def join(old: Tokens, new: Tokens) -> Tokens:
    """The facts of old tokens and of those that follow them, as a cache keeps them.

    Raises:
        MaskError: If one of the two lacks a fact for which no answer can be assumed.
    """
    length = old.length + new.length
    marks = {}
    for name in {**old.marks, **new.marks}:
        marks[name] = _cat(mark_of(name, old, new), mark_of(name, new, old))
    absent = None
    if old.absent is not None or new.absent is not None:
        absent = _cat(*(_nobody(t) if t.absent is None else t.absent for t in (old, new)))
    position: int | Tensor
    if old.is_run and new.is_run and new.position == old.position + old.length:
        position = old.position
    else:
        position = _cat(_two_dim(old.positions()), _two_dim(new.positions()))
    return Tokens(length, position, absent, marks, new.device)


def mark_of(name: str, tokens: Tokens, other: Tokens) -> Tensor:
    """A mark of some tokens, or what it is where only others have it.

    Raises:
        MaskError: If no answer can be assumed.
    """
    if name in tokens.marks:
        return tokens.marks[name]
    if other.marks[name].dtype == torch.bool:  # what nobody said is not so
        return _nobody(tokens)
    kind = name.split("#")[0]
    raise MaskError(
        f"a cache must know the {kind} of all its tokens or of none; got {tokens.length} tokens "
        f"without. Add {kind.capitalize()}s(...) to the mask of every chunk."
    )


def _nobody(tokens: Tokens) -> Tensor:
    return torch.zeros(1, tokens.length, dtype=torch.bool, device=tokens.device)


def _rows(fact: Tensor, index: Tensor) -> Tensor:
    return fact if fact.shape[0] == 1 else fact.index_select(0, index)


def _two_dim(fact: Tensor) -> Tensor:
    return fact[None] if fact.ndim == 1 else fact


def _cat(old: Tensor, new: Tensor) -> Tensor:
    batch = max(old.shape[0], new.shape[0])
    return torch.cat((old.expand(batch, -1), new.expand(batch, -1)), dim=1)


def absent_where(position: Tensor) -> Tensor:
    """bool (batch or 1, length): where a position says that there is no token."""
    return _two_dim(position < 0)


class Facts:
    """Gathers the tensors of a mask, so that what is left of it is a rule without tensors."""

    def __init__(self, batch: int, q: Tokens, kv: Tokens, *, kv_total: int, related: bool) -> None:
        """Begin with no facts.

        Args:
            batch: How many sequences the call has.
            q: The queries.
            kv: The keys that the mask speaks of; with a cache, the new ones.
            kv_total: How many keys the call has, those of a cache included.
            related: Whether the queries are the last of the keys, as in self-attention.
        """
        self.batch, self.q, self.kv, self.kv_total, self.related = batch, q, kv, kv_total, related
        self.q_marks: dict[str, Tensor] = {}
        self.kv_marks: dict[str, Tensor] = {}
        self.pairs: dict[str, Tensor] = {}
        self._owners: list[tuple[object, str]] = []

    def keys(self, kind: str, owner: object, fact: Tensor) -> str:
        """Keep a fact of each key, (batch or 1, kv_len), and return the name to read it by."""
        name = self._name(kind, owner)
        self.kv_marks[name] = self._fit(kind, fact, self.kv)
        return name

    def tokens(self, kind: str, owner: object, fact: Tensor, q_fact: Tensor | None = None) -> str:
        """Keep a fact of each token, for keys and queries, and return the name to read it by."""
        name = self.keys(kind, owner, fact)
        if q_fact is None:
            q_fact = self._of_queries(kind, self.kv_marks[name])
        self.q_marks[name] = self._fit(f"query {kind}", q_fact, self.q)
        return name

    def whole(self, kind: str, owner: object, fact: Tensor) -> str:
        """Keep a fact of each pair, (batch or 1, heads or 1, q_len or 1, kv_len)."""
        name = self._name(kind, owner)
        if fact.shape[-2] not in (1, self.q.length) or fact.shape[-1] != self.kv_total:
            raise MaskError(
                f"a mask tensor must be (..., q_len or 1, kv_len) = (..., {self.q.length}, "
                f"{self.kv_total}); got shape {tuple(fact.shape)}. With a cache it must span all "
                f"keys, the old ones too; Causal(), Padding and the like need no such care."
            )
        if fact.shape[0] not in (1, self.batch):
            raise MaskError(
                f"a mask tensor's batch must be 1 or {self.batch}; got shape {tuple(fact.shape)}. "
                f"Its dimensions are (batch, heads or 1, q_len, kv_len)."
            )
        self.pairs[name] = fact.to(self.q.device) if self.q.device else fact
        return name

    def _name(self, kind: str, owner: object) -> str:
        # The same mask object twice in an expression is one fact; two of a kind get two names,
        # by their order, so that a later chunk of the same expression finds the same names.
        # (By identity, not by id(): a compiler would compile anew for every new object.)
        for known, name in self._owners:
            if known is owner:
                return name
        count = sum(name.split("#")[0] == kind for _, name in self._owners)
        self._owners.append((owner, f"{kind}#{count}" if count else kind))
        return self._owners[-1][1]

    def _fit(self, kind: str, fact: Tensor, tokens: Tokens) -> Tensor:
        if tuple(fact.shape) not in ((1, tokens.length), (self.batch, tokens.length)):
            raise MaskError(
                f"{kind} must be (batch, length) = ({self.batch}, {tokens.length}); got shape "
                f"{tuple(fact.shape)}. A mask describes the tokens of this call, each once."
            )
        return fact.to(tokens.device) if tokens.device else fact

    def _of_queries(self, kind: str, fact: Tensor) -> Tensor:
        if self.q.length == self.kv.length and self.related:
            return fact
        if not self.related or self.q.length > self.kv.length:
            raise MaskError(
                f"{kind} of the queries must be known; got q_len={self.q.length}, "
                f"kv_len={self.kv.length} and facts of the keys alone. Say the queries' own too, "
                f"as in Documents(ids, query_ids=...)."
            )
        return fact[:, fact.shape[1] - self.q.length :]
