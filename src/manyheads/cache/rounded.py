"""Keys and values in a few bits: keys rounded by channel, values by token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.cache.cached import Cached
from manyheads.cache.codes import Codes, decode, encode


@dataclass(frozen=True, eq=False)
class Rounded:
    """Tokens whose keys and values are rounded.

    Args:
        k: Codes (batch, num_kv_heads, length, ...); middle and step (batch, num_kv_heads, groups,
            head_dim).
        v: Codes likewise; middle and step (batch, num_kv_heads, length, 1).
        group: int (batch or 1, length), the group of each token's key.
        bits: Of each number.
        widths: head_dim and value_dim.
    """

    k: Codes
    v: Codes
    group: Tensor
    bits: int
    widths: tuple[int, int]

    @classmethod
    def made(cls, held: Cached, bits: int, group: int) -> "Rounded":
        """Round exact keys and values; keys in groups of tokens, of which the last may be short."""
        whole = held.length // group * group
        if whole and whole < held.length:
            rest = held.last(held.length - whole)
            return cls.made(held.first(whole), bits, group).then(cls.made(rest, bits, group))
        size = group if whole else held.length
        absent = None
        if held.tokens.absent is not None:
            absent = held.tokens.absent[:, None, :, None]
        if size:
            by_group = None if absent is None else absent.unflatten(2, (-1, size))
            k = encode(held.k.unflatten(2, (-1, size)), bits, -2, by_group)
            k = Codes(k.packed.flatten(2, 3), k.middle.squeeze(3), k.step.squeeze(3))
        else:
            # One group of nobody, for the padding of rows that join.
            k = encode(held.k, bits, -1)
            none = k.middle.new_zeros(*held.k.shape[:2], 1, held.k.shape[3])
            k = Codes(k.packed, none, none)
        places = torch.arange(held.length, dtype=torch.int32, device=held.k.device)
        groups = (places // max(size, 1)).to(torch.int32)[None]
        widths = (held.k.shape[3], held.v.shape[3])
        return cls(k, encode(held.v, bits, -1, absent), groups, bits, widths)

    @property
    def length(self) -> int:
        """How many tokens."""
        return self.group.shape[1]

    def read(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values, as near as they are known."""
        middle, step = (_spread(x, self.group) for x in (self.k.middle, self.k.step))
        k = decode(Codes(self.k.packed, middle, step), self.bits, self.widths[0], dtype)
        return k, decode(self.v, self.bits, self.widths[1], dtype)

    def error(self) -> tuple[float, float]:
        """Half the widest step of keys, and of values."""
        k, v = (float(x.step.max()) / 2 if x.step.numel() else 0.0 for x in (self.k, self.v))
        return k, v

    def first(self, length: int) -> "Rounded":
        """The first ``length`` tokens; nothing is rounded again."""
        group = self.group[:, :length].clone()
        groups = int(group.max()) + 1 if length else 1
        k = Codes(self.k.packed[:, :, :length].clone(), *(
            x[:, :, :groups].clone() for x in (self.k.middle, self.k.step)
        ))  # fmt: skip
        return self._with(k, Codes(*(x[:, :, :length].clone() for x in self.v)), group)

    def then(self, new: "Rounded") -> "Rounded":
        """These tokens and those that follow them."""
        batch = max(self.group.shape[0], new.group.shape[0])
        after = new.group + self.k.middle.shape[2]
        group = torch.cat((self.group.expand(batch, -1), after.expand(batch, -1)), dim=1)
        k, v = (
            Codes(*(torch.cat(pair, dim=2) for pair in zip(old, recent, strict=True)))
            for old, recent in ((self.k, new.k), (self.v, new.v))
        )
        return self._with(k, v, group)

    def rows(self, index: Tensor) -> "Rounded":
        """A copy of some rows."""
        k, v = (Codes(*(x.index_select(0, index) for x in codes)) for codes in (self.k, self.v))
        group = self.group if self.group.shape[0] == 1 else self.group.index_select(0, index)
        return self._with(k, v, group)

    def beside(self, other: "Rounded") -> "Rounded":
        """These rows and those of another; the shorter are padded on the left."""
        length = max(self.length, other.length)
        groups = max(self.k.middle.shape[2], other.k.middle.shape[2])
        mine, theirs = self._padded(length, groups), other._padded(length, groups)
        k, v = (
            Codes(*(torch.cat(pair) for pair in zip(*codes, strict=True)))
            for codes in ((mine.k, theirs.k), (mine.v, theirs.v))
        )
        return self._with(k, v, torch.cat((mine.group, theirs.group)))

    def _padded(self, length: int, groups: int) -> "Rounded":
        missing, more = length - self.length, groups - self.k.middle.shape[2]
        pad = torch.nn.functional.pad
        k = Codes(
            pad(self.k.packed, (0, 0, missing, 0)),
            *(pad(x, (0, 0, 0, more)) for x in (self.k.middle, self.k.step)),
        )
        v = Codes(*(pad(x, (0, 0, missing, 0)) for x in self.v))
        group = pad(self.group, (missing, 0)).expand(self.k.packed.shape[0], -1)
        return self._with(k, v, group)

    def _with(self, k: Codes, v: Codes, group: Tensor) -> "Rounded":
        return Rounded(k, v, group, self.bits, self.widths)

    def memory_bytes(self) -> int:
        """Bytes of codes, middles, steps and groups."""
        return sum(x.numel() * x.element_size() for x in (*self.k, *self.v, self.group))


def _spread(x: Tensor, group: Tensor) -> Tensor:
    """(batch, heads, groups, width) to (batch, heads, length, width)."""
    if group.shape[0] == 1:
        return x.index_select(2, group[0])
    index = group.long()[:, None, :, None]
    return x.gather(2, index.expand(x.shape[0], x.shape[1], -1, x.shape[3]))
