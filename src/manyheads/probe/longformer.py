"""Longformer's layers: a window for all tokens, and a view of all, by other weights, for a few."""

from torch import Tensor

from manyheads.functional import Call
from manyheads.functional.call import prepare
from manyheads.masks import Global, Window
from manyheads.probe.layer import Layer, Read, places_of, without


def read_longformer(layer: Layer) -> list[Read]:
    """The call of the window, and that of the global tokens where there are some.

    Global tokens are keys of both, and queries of the second alone, as the layer has it.

    Source:
        Beltagy et al. 2020 (arXiv:2004.05150), section 3.1.
    """
    hidden, is_global = layer.given["is_index_masked"], layer.given["is_index_global_attn"]
    reads = [Read(lambda: _window(layer, hidden, is_global), without(hidden | is_global))]
    if layer.given["is_global_attn"]:
        few, there = _few(is_global)
        reads.append(
            Read(lambda: _global(layer, hidden, few, there), lambda x: _taken(x, few, there))
        )
    return reads


def _window(layer: Layer, hidden: Tensor, is_global: Tensor) -> Call:
    # The layer has divided what its child made by the root of head_dim, where it lies.
    q, k, v = (_split(layer, name) for name in ("query", "key", "value"))
    beside = layer.module.one_sided_attn_window_size
    mask = Window(before=beside, after=beside) | Global(is_global)
    return prepare(
        q, k, v, mask, bias=None, scale=1.0, softcap=None, sink_logits=None, dropout=0.0,
        q_pos=places_of(~(hidden | is_global)), kv_pos=places_of(~hidden), need="weights",
    )  # fmt: skip


def _global(layer: Layer, hidden: Tensor, few: Tensor, there: Tensor) -> Call:
    q, k, v = (_split(layer, f"{name}_global") for name in ("query", "key", "value"))
    return prepare(
        q, k, v, None, bias=None, scale=1.0, softcap=None, sink_logits=None, dropout=0.0,
        q_pos=few.masked_fill(~there, -1), kv_pos=places_of(~hidden), need="weights",
    )  # fmt: skip


def _split(layer: Layer, name: str) -> Tensor:
    return layer.split(layer.parts[name].transpose(0, 1))  # the length comes first


def _few(is_global: Tensor) -> tuple[Tensor, Tensor]:
    """Where the global tokens of each sequence stand, in order, and which of these are some."""
    most = int(is_global.sum(dim=1).max())
    few = is_global.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return few, is_global.gather(1, few)


def _taken(x: Tensor, few: Tensor, there: Tensor) -> Tensor:
    index = few[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index).masked_fill(~there[:, None, :, None], 0.0)
