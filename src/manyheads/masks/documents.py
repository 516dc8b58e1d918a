"""Documents packed into one row do not see one another."""

from dataclasses import dataclass

from torch import Tensor

from manyheads.errors import MaskError
from manyheads.masks.base import Mask
from manyheads.masks.facts import Facts, Side
from manyheads.shapes import check_tensor, holds_integers


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Each query sees the keys of its own document.

    Args:
        ids: int (batch, length), the document of each token; equal numbers are one document.
        query_ids: int (batch, q_len), the same for the queries where they are not the last of the
            keys, as in cross-attention; None takes them from `ids`.

    Raises:
        MaskError: If ids are not integers of two dimensions.

    Source:
        Krell et al. 2021 (arXiv:2107.02027).

    Example:
        >>> import torch, manyheads as mh
        >>> print((mh.Causal() & mh.Documents(torch.tensor([[0, 0, 1, 1]]))).draw(4))
        █···
        ██··
        ··█·
        ··██
    """

    ids: Tensor
    query_ids: Tensor | None = None

    reads_positions = False

    def __post_init__(self) -> None:
        for name, ids in (("ids", self.ids), ("query_ids", self.query_ids)):
            if ids is None:
                continue
            if not holds_integers(check_tensor(name, ids)):
                raise MaskError(
                    f"{name} must be integers; got {name}={ids.dtype}. Number the documents: "
                    f"tokens with equal numbers see each other."
                )
            if ids.ndim != 2:
                raise MaskError(
                    f"{name} must be (batch, length); got shape {tuple(ids.shape)}. For one row "
                    f"write {name}[None]."
                )

    def settle(self, facts: Facts) -> Mask:
        return SameDocument(facts.tokens("document", self, self.ids, self.query_ids))

    def __repr__(self) -> str:
        return f"Documents(ids of {tuple(self.ids.shape)})"


@dataclass(frozen=True, eq=False)
class SameDocument(Mask):
    """The rule of `Documents`: tokens of equal number see each other."""

    fact: str
    reads_positions = False

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        return q[self.fact] == kv[self.fact]

    def mark_bounds(self, q_lo: int, q_hi: int, kv_lo: int, kv_hi: int) -> tuple[bool, bool]:
        return q_lo <= kv_hi and kv_lo <= q_hi, q_lo == q_hi == kv_lo == kv_hi
