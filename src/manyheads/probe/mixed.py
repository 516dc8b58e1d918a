"""What a call mixed, as the very tensor that the model goes on with."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Mixed:
    """The output of a call's heads; autograd's graph hangs on it once the operation is done.

    Args:
        tensor: In the model's own layout.
        split: Reads a tensor of that layout as (batch, heads, q_len, value_dim).
    """

    tensor: Tensor
    split: Callable[[Tensor], Tensor] = lambda x: x

    def heads(self) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Head by head."""
        return self.split(self.tensor)
