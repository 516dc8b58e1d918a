"""What every mask is."""

import warnings
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from manyheads.errors import MaskError, MaskWarning
from manyheads.masks.facts import Facts, Side
from manyheads.shapes import Positions, check_count


class Mask:
    """Who may see whom. True means "may see", here and everywhere in the library.

    A mask is a frozen dataclass. Most hold numbers only: such a mask is a *rule*, which prints,
    compares and hashes. Some hold tensors (`Padding`, `Documents`, `Dense`): such a mask compares
    by identity, moves with ``.to(device)``, and turns into a rule and facts when it meets a call.

    To write one, subclass and define `allows`; add `bounds` where blocks can be judged at once.
    Positions decide, not indices: one mask serves training, prefill, decoding and a cache that has
    forgotten its oldest keys.

    Example:
        >>> import manyheads as mh
        >>> print((mh.Causal() & mh.Window(2)).draw(4))
        █···
        ██··
        ·██·
        ··██
    """

    reads_positions = True
    """Whether `allows` looks at positions; a rule that does not is never blind without them."""

    reads_head = False
    """Whether `bounds` tells more of one head than of all; blocks are then planned for each."""

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        """Whether each query may see each key; everything broadcasts.

        Some kernels ask pair by pair: then every tensor is a single number, without dimensions.

        Args:
            head: The query heads, int (heads, 1, 1).
            q: What is known of the queries; ``q.position`` is (batch or 1, 1, q_len, 1).
            kv: What is known of the keys; ``kv.position`` is (batch or 1, 1, 1, kv_len).

        Returns:
            bool, broadcastable to (batch, heads, q_len, kv_len).
        """
        raise NotImplementedError

    def bounds(
        self, head: int | None, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int
    ) -> tuple[bool, bool]:
        """Whether in a block of positions perhaps some, and surely all, pairs may see each other.

        Args:
            head: The query head, or None for all of them.
            q_lo: First position of the queries; `q_hi` is their last, included.
            q_hi: See `q_lo`.
            kv_lo: First position of the keys; `kv_hi` is their last, included.
            kv_hi: See `kv_lo`.

        Returns:
            (True, False) where nothing is known: always sound.
        """
        return True, False

    def mark_bounds(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> tuple[bool, bool]:
        """As `bounds`, for a rule that reads one fact: from its least and greatest in a block."""
        return True, False

    def likeness(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> Hashable:
        """What this rule's answers hang on in a block of runs: where it is equal, so are they.

        Takes what `bounds` takes, of blocks of one size.
        """
        return q_lo, kv_lo

    def settle(self, facts: Facts) -> "Mask":
        """This mask as a rule without tensors; its tensors are handed to ``facts``."""
        return self

    def absent(self, shown: bool = False) -> frozenset[str]:
        """The facts such that a key of which one is true is hidden from everyone.

        Args:
            shown: Ask for the facts that show a key to everyone instead, which is what ``~``
                turns into hidden.
        """
        return frozenset()

    def among(self, facts: frozenset[str]) -> "Mask":
        """What is left of this rule among keys of which none of ``facts`` is true."""
        return self

    def hides_future(self) -> bool:
        """Whether this mask surely never lets a query see a later key."""
        return False

    def reopens_future(self) -> bool:
        """Whether ``causal | self`` would let the future in where that is seldom meant."""
        return not self.hides_future()

    def __and__(self, other: "Mask | Tensor") -> "Mask":
        from manyheads.masks.algebra import And
        from manyheads.masks.dense import as_mask

        return And(self, as_mask(other))

    def __or__(self, other: "Mask | Tensor") -> "Mask":
        from manyheads.masks.algebra import Or
        from manyheads.masks.dense import as_mask

        other = as_mask(other)
        for causal, wide in ((self, other), (other, self)):
            reopens = causal.hides_future() and wide.reopens_future()
            if reopens and not torch.compiler.is_compiling():
                warnings.warn(
                    f"`{self!r} | {other!r}` lets queries see later keys, though one side is "
                    f"causal. `&` binds tighter than `|`: write Causal() & (... | ...).",
                    MaskWarning,
                    stacklevel=2,
                )
        return Or(self, other)

    def __invert__(self) -> "Mask":
        from manyheads.masks.algebra import Not

        return Not(self)

    def __bool__(self) -> bool:
        raise MaskError(
            "masks must be combined with &, | and ~; got `and`, `or` or `not`, which keep only one "
            "of them. Write Causal() & Window(8)."
        )

    def __eq__(self, other: object) -> bool:
        # Tensors have no truth value, so a mask that holds one equals only itself.
        if self is other or type(self) is not type(other) or self._holds_tensor():
            return self is other
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        try:
            return hash((type(self), *vars(self).values()))  # tensors hash by identity
        except TypeError as error:
            raise MaskError(
                f"the fields of a mask must be hashable, since what is worked out for one mask "
                f"serves its equals; got {self!r}. Write lists as tuples."
            ) from error

    def _holds_tensor(self) -> bool:
        return any(isinstance(value, Tensor) for value in vars(self).values())

    def parts(self) -> Iterator["Mask"]:
        """This mask and every mask inside it."""
        yield self
        for value in vars(self).values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Mask):
                    yield from item.parts()

    def tensors(self) -> list[Tensor]:
        """The tensors that this mask holds."""
        return [leaf for leaf in pytree.tree_leaves(self) if isinstance(leaf, Tensor)]

    def to(self, *args: Any, **kwargs: Any) -> "Mask":
        """This mask with its tensors moved; takes what ``Module.to`` takes, and leaves dtypes."""
        device, _, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return pytree.tree_map_only(
            Tensor, lambda tensor: tensor.to(device, non_blocking=non_blocking), self
        )

    def dense(
        self,
        q_len: int,
        kv_len: int | None = None,
        *,
        batch: int = 1,
        num_heads: int = 1,
        q_pos: Positions = None,
        kv_pos: Positions = None,
    ) -> Tensor:
        """Write the mask out: bool (batch, num_heads, q_len, kv_len).

        Args:
            q_len: How many queries.
            kv_len: How many keys; None means ``q_len``.
            batch: How many sequences.
            num_heads: How many query heads.
            q_pos: Positions of the queries; None makes them the last ``q_len`` of the keys.
            kv_pos: Positions of the keys.

        Raises:
            OptionError: If a number of things is no count.
        """
        kv_len = q_len if kv_len is None else kv_len
        for name, length in (("q_len", q_len), ("kv_len", kv_len), ("batch", batch)):
            check_count(name, length, least=0)
        check_count("num_heads", num_heads)
        device = next((tensor.device for tensor in self.tensors()), None)
        from manyheads.masks.bound import bind

        bound = bind(self, batch, q_len, kv_len, q_pos=q_pos, kv_pos=kv_pos, device=device)
        return bound.dense(num_heads).expand(batch, num_heads, q_len, kv_len)

    def describe(self, q_len: int, kv_len: int | None = None, **options: Any) -> "Any":
        """Count what this mask leaves: density, and rows that see nobody.

        Takes what `dense` takes. Returns a `Description`, which prints.

        Example:
            >>> import manyheads as mh
            >>> mh.Causal().describe(4)
            Causal(): 10 of 16 pairs (62.5 %), no empty row
        """
        from manyheads.masks.picture import describe

        return describe(self, self.dense(q_len, kv_len, **options))

    def draw(self, q_len: int, kv_len: int | None = None, *, block: int = 1, **options: Any) -> str:
        """Draw this mask in text, a line a query; takes what `dense` takes.

        Args:
            q_len: How many queries.
            kv_len: How many keys; None means ``q_len``.
            block: Draw squares of so many queries and keys as one: █ all see, ▒ some, · none.
            **options: See `dense`.

        Example:
            >>> import manyheads as mh
            >>> print((mh.Causal() & mh.Window(4)).draw(16, block=4))
            ▒···
            ▒▒··
            ·▒▒·
            ··▒▒
        """
        from manyheads.masks.picture import draw

        check_count("block", block)
        return draw(self.dense(q_len, kv_len, **options), block)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Every mask is a pytree: tensors and masks are its children, the rest is its structure.
        pytree.register_pytree_node(
            cls,
            _flatten,
            _unflatten,
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
            flatten_with_keys_fn=_flatten_with_keys,
        )


def _is_child(value: object) -> bool:
    if isinstance(value, tuple):
        return any(isinstance(item, Mask) for item in value)
    return isinstance(value, Tensor | Mask)


def _flatten(mask: Mask) -> tuple[list[Any], Any]:
    attributes = vars(mask)
    children = [value for value in attributes.values() if _is_child(value)]
    static = tuple((n, None if _is_child(v) else (v,)) for n, v in attributes.items())
    return children, (type(mask), static)


def _flatten_with_keys(mask: Mask) -> tuple[list[Any], Any]:
    children, context = _flatten(mask)
    names = [name for name, value in context[1] if value is None]
    return [
        (pytree.GetAttrKey(n), child) for n, child in zip(names, children, strict=True)
    ], context


def _unflatten(children: Any, context: Any) -> Mask:
    # Past the constructor and its checks: a tree may hold anything in a tensor's place.
    kind, static = context
    mask, rest = object.__new__(kind), iter(children)
    for name, value in static:
        object.__setattr__(mask, name, next(rest) if value is None else value[0])
    return mask


def four_dims(seen: Tensor) -> Tensor:
    """What `Mask.allows` answered, with all of its dimensions, (batch, heads, q_len, kv_len)."""
    return seen[(None,) * (4 - seen.ndim)]
