"""The models of strangers on show; their codes were written down before the doctor saw them."""

from functools import partial
from typing import Any

import torch
from tests.museum import strangers
from tests.museum.exhibit import UNKNOWN, Exhibit
from torch import Tensor

from manyheads.doctor import CacheFacts, Facts

DRAW = torch.Generator().manual_seed(7)
IDS = torch.randint(1, strangers.WORDS, (2, 12), generator=DRAW)
SOURCE = torch.randint(1, strangers.WORDS, (2, 9), generator=DRAW)
X = torch.randn(2, 12, strangers.WIDTH, generator=DRAW)
IMAGES = torch.randn(2, 3, 16, 16, generator=DRAW)
KEEP = torch.ones(2, 12, dtype=torch.long)
KEEP[1, 8:] = 0
SOURCE_PADDING = torch.zeros(2, 9, dtype=torch.bool)
SOURCE_PADDING[1, 6:] = True
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7, [0] * 3 + [1] * 9])


def reordered(state: Any, index: Tensor) -> Any:
    return {name: each[index] for name, each in state.items()}


def keys_reordered(state: Any, index: Tensor) -> Any:
    return {"k": state["k"][index], "v": state["v"]}


CACHED = Facts(cache=CacheFacts("state", start=dict, reorder=reordered))
HALF_CACHED = Facts(cache=CacheFacts("state", start=dict, reorder=keys_reordered))
HIDDEN = Facts(padding="padding_mask", real=False)
MASKED = Facts(padding="mask", real=True)
ORDERED, WINDOW = Facts(ordered=True), Facts(window=4)


def shown(
    code: str, kind: str, *options: Any, args: Any = (X,), facts: Facts = UNKNOWN, **given: Any
) -> Exhibit:
    """An exhibit of a model of `strangers`, by the name of its class."""
    said = "-".join(map(str, (*options, *given.values())))
    known = {WINDOW: "window", CACHED: "cached", HIDDEN: "padded", MASKED: "padded"}.get(facts, "")
    name = "-".join(filter(None, ("stranger", kind, said, known)))
    build = partial(getattr(strangers, kind), *options, **given)
    return Exhibit(name, build, args, {}, facts, code)


BROKEN = [
    shown("scale_d_model", "FusedGPT", "scale", args=(IDS,)),
    shown("heads_merged_wrong", "FusedGPT", "merge", args=(IDS,)),
    shown("dropout_in_eval", "FusedGPT", "dropout", args=(IDS,)),
    shown("gradient_dead", "FusedGPT", "detach", args=(IDS,)),
    shown("init_loss", "FusedGPT", "tied", args=(IDS,)),
    shown("gqa_order", "LlamaLM", "tile", args=(IDS,)),
    shown("rope_on_values", "LlamaLM", "values", args=(IDS,)),
    shown("position_offset_cache", "LlamaLM", "restart", args=(IDS,), facts=CACHED),
    shown("cache_mismatch", "LlamaLM", "order", args=(IDS,), facts=CACHED),
    shown("cache_mismatch", "LlamaLM", "corner", args=(IDS,), facts=CACHED),
    shown("beam_aliasing", "LlamaLM", args=(IDS,), facts=HALF_CACHED),
    shown("mask_inverted", "BertModel", "inverted", args=(IDS, KEEP)),
    shown("float01_mask_added", "BertModel", "added", args=(IDS, KEEP)),
    shown("mask_wrong_axis", "BertModel", "axis", args=(IDS, KEEP)),
    shown("mask_lost", "BertModel", "lost", args=(IDS, KEEP)),
    shown("key_value_swapped", "BertModel", "swap", args=(IDS, KEEP)),
    shown("weights_after_dropout", "BertModel", "probs", args=(IDS, KEEP)),
    shown("left_pad_position", "BertModel", "first_real", args=(IDS, KEEP.flip(1))),
    shown("batch_mixing", "TorchBlock", "first"),
    shown("mask_inverted", "TorchBlock", "tril", causal=True),
    shown("mask_inverted", "TorchBlock", "keep", args=(X, KEEP == 0), facts=HIDDEN),
    shown("empty_row_nan", "TorchBlock", args=(X, KEEP == 0), facts=HIDDEN),
    shown("no_position", "ViT", "place", args=(IMAGES,), facts=ORDERED),
    shown("batch_mixing", "ViT", "norm", args=(IMAGES,)),
    shown("softmax_axis", "EinsumAttention", axis=-2),
    shown("scale_inverse", "EinsumAttention", scale=8**0.5),
    shown("cross_ignores_context", "Seq2Seq", "self", args=(SOURCE, IDS)),
    shown("padding_leak", "Seq2Seq", "padding", args=(SOURCE, IDS, SOURCE_PADDING)),
    shown("future_leak", "Seq2Seq", "late", args=(SOURCE, IDS, SOURCE_PADDING)),
    shown("scale_twice", "Biased", "alibi", "twice", args=(IDS,)),
    shown("window_off_by_one", "Windowed", "wide", facts=WINDOW),
    shown("future_leak", "Windowed", "capped_last", facts=WINDOW),
    shown("self_excluded", "Sinks", "token", "unshifted"),
    shown("future_leak", "Gated", "mean"),
    shown("train_eval_mismatch", "Gated", "mode"),
    shown("unused_parameters", "Gated", "unused"),
    shown("document_leak", "Packed", "later", args=(X, DOCUMENTS)),
]

HEALTHY = [
    shown("", "FusedGPT", args=(IDS,)),
    shown("", "LlamaLM", args=(IDS,)),
    shown("", "LlamaLM", args=(IDS,), facts=CACHED),
    shown("", "BertModel", args=(IDS, KEEP)),
    shown("", "TorchBlock"),
    shown("", "TorchBlock", causal=True),
    shown("", "ViT", args=(IMAGES,), facts=ORDERED),
    shown("", "EinsumAttention"),
    shown("", "Seq2Seq", args=(SOURCE, IDS, SOURCE_PADDING)),
    shown("", "Biased", args=(IDS,)),
    shown("", "Biased", "t5", args=(IDS,)),
    shown("", "Biased", "t5", args=(IDS, KEEP.bool()), facts=MASKED),
    shown("", "Windowed", facts=WINDOW),
    shown("", "Sinks"),
    shown("", "Sinks", "logits"),
    shown("", "Gated"),
    shown("", "Packed", args=(X, DOCUMENTS)),
]
