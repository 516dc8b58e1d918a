"""BigBird's layers in blocks: the first and the last, those beside one's own, and some others."""

from torch import Tensor

from manyheads.errors import ProbeError
from manyheads.functional import Call
from manyheads.functional.call import prepare
from manyheads.masks import Rule
from manyheads.probe.layer import Layer, Read, places_of, without
from manyheads.probe.repeats import Repeats


def read_big_bird(layer: Layer) -> list[Read]:
    """The call of all blocks.

    In eval the library draws no blocks, but takes the first one in their place: a query in the
    middle meets each key of it once more for each that would have been drawn.

    Source:
        Zaheer et al. 2020 (arXiv:2007.14062), section 2.
    """
    there = layer.given["to_mask"][:, 0, 0].bool()
    return [Read(lambda: _call(layer, there), without(~there))]


def _call(layer: Layer, there: Tensor) -> Call:
    if layer.module.training:
        raise ProbeError(
            "a layer in blocks must be in eval mode; got one in training, where its blocks are "
            "drawn at random and not told. Call model.eval() before you watch it."
        )
    block, drawn = layer.module.block_size, layer.module.num_random_blocks
    last = there.shape[1] // block - 1

    def count(q: Tensor, kv: Tensor) -> Tensor:
        mine, theirs = q // block, kv // block
        is_middle = (mine > 0) & (mine < last)
        near = (mine - theirs).abs() <= 1
        met = ~is_middle | near | (theirs == 0) | (theirs == last)
        return met.int() + drawn * (is_middle & (theirs == 0)).int()

    q, k, v = (layer.part(name) for name in ("query", "key", "value"))
    place = places_of(there)
    return prepare(
        q, k, v, Rule(lambda head, q, kv: count(q, kv) > 0, "blocks"),
        bias=Repeats(q.shape[1], count), scale=None, softcap=None, sink_logits=None, dropout=0.0,
        q_pos=place, kv_pos=place, need="weights",
    )  # fmt: skip
