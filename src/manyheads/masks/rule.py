"""A mask from a function of the user's own."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import MaskError
from manyheads.masks.base import Mask, four_dims
from manyheads.masks.facts import Side


@dataclass(frozen=True, eq=False)
class Rule(Mask):
    """Who may see whom, by a function of head and positions.

    Args:
        function: Called with three int tensors that broadcast, the query head (heads, 1, 1), the
            positions of the queries (batch or 1, 1, q_len, 1) and those of the keys
            (batch or 1, 1, 1, kv_len); returns bool. It is asked anew in every call. Two rules are
            equal if they hold the same function, so define it once.
        name: How the mask prints.

    Raises:
        MaskError: If it is no function; when called, if what it returns is not bool or does not
            broadcast to the pairs.

    Example:
        >>> import manyheads as mh
        >>> print(mh.Rule(lambda head, q, kv: (q - kv) % 2 == 0, "every other").draw(3))
        █·█
        ·█·
        █·█
    """

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    name: str

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise MaskError(
                f"function must be callable; got function={self.function!r}. Give a function of "
                f"(head, q, kv) that returns a bool tensor."
            )

    def allows(self, head: Tensor, q: Side, kv: Side) -> Tensor:
        seen = self.function(head, q.position, kv.position)
        if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
            kind = seen.dtype if isinstance(seen, Tensor) else type(seen).__name__
            raise MaskError(
                f"a rule must return a bool tensor; got {kind} from {self.name}. Compare positions "
                f"with ==, < and the like, and join conditions with & and |."
            )
        whole = torch.broadcast_shapes(head.shape, q.position.shape, kv.position.shape)
        sizes = zip(reversed(seen.shape), reversed(whole), strict=False)
        if seen.ndim > 4 or any(size not in (1, full) for size, full in sizes):
            raise MaskError(
                f"a rule must return what broadcasts to {tuple(whole)}; got shape "
                f"{tuple(seen.shape)} from {self.name}. Combine its arguments by arithmetic alone."
            )
        return four_dims(seen) if head.ndim else seen

    def __hash__(self) -> int:
        return hash(self.name)  # a function may be an object without a hash

    def __repr__(self) -> str:
        return f"Rule({self.name})"
