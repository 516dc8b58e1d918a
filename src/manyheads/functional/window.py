"""Some queries and some keys of a call, as a call of their own."""

from torch import Tensor

from manyheads.functional.bias import PlacedBias
from manyheads.functional.call import Call
from manyheads.masks.cut import Chosen, cut, take_pairs, take_places


def window(call: Call, sequence: slice, rows: Chosen, keys: Chosen) -> Call:
    """The call that only some sequences, queries and keys make, all heads of it.

    Args:
        call: The whole call.
        sequence: Which sequences.
        rows: Which queries: a slice, or their indices.
        keys: Which keys, likewise.
    """
    mask = None if call.mask is None else cut(call.mask, sequence, rows, keys)
    bias = call.bias
    if isinstance(bias, PlacedBias):
        bias = PlacedBias(
            bias.rule,
            take_places(bias.q_pos, sequence, rows),
            take_places(bias.kv_pos, sequence, keys),
        )
    elif bias is not None:
        bias = take_pairs(bias, sequence, rows, keys)
    return call._replace(
        q=_take(call.q, sequence, rows),
        k=_take(call.k, sequence, keys),
        v=_take(call.v, sequence, keys),
        mask=mask,
        bias=bias,
    )


def _take(x: Tensor, sequence: slice, chosen: Chosen) -> Tensor:
    return x[sequence][:, :, chosen]
