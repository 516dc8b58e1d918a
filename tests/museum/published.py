"""Other people's published modules of which the doctor has something to say.

The code of each was written down after its source was read. What is told of them is on
docs/museum.md, with what their authors meant.
"""

from importlib import import_module
from typing import Any

import torch
from tests.museum import lucid
from tests.museum.exhibit import HEADS, LENGTH, UNKNOWN, WIDTH, Exhibit, stream
from tests.museum.hugging_face import IMAGE, KEEP, SIZES, T5, reads, sees, translates

from manyheads.doctor import Facts

PAIRS = torch.ones(2, LENGTH, LENGTH, dtype=torch.bool)
ALL_PAIRS = PAIRS[0]
"""Masks that hide nothing: True lets a query see a key."""

SEEN = Facts(seen=True)
CAUSAL = Facts(seen=True, causal=True)
WIDE = stream(width=32)


def named(package: str, kind: str, *options: Any, **given: Any) -> Any:
    """A factory of a class of an installed package."""
    return lambda: getattr(import_module(package), kind)(*options, **given)


def hut(
    name: str, code: str, kind: str, *options: Any, facts: Facts = CAUSAL, given: Any = None,
    x: torch.Tensor = WIDE, **more: Any,
) -> Exhibit:  # fmt: skip
    given = {"attn_mask": PAIRS[:, None]} if given is None else given
    build = named("attnhut", kind, x.shape[-1], *options, **more)
    return Exhibit(f"attnhut-{name}", build, (x,), given, facts, code, "attnhut")


def zoo(
    name: str, code: str, kind: str, *options: Any, facts: Facts = UNKNOWN, given: Any = None,
    **more: Any,
) -> Exhibit:  # fmt: skip
    build = named("attzoo", kind, WIDTH, *options, **more)
    return Exhibit(f"attzoo-{name}", build, (stream(),), given or {}, facts, code, "attzoo")


def auto(name: str, code: str, kind: str, mask: torch.Tensor, facts: Facts) -> Exhibit:
    x, given = stream(), {"attn_mask": mask}
    build = named("autoattn.backends", kind, WIDTH, HEADS)
    return Exhibit(f"autoattn-{name}", build, (x, x, x), given, facts, code, "autoattn")


def dropped(kind: str, *options: Any, name: str, **more: Any) -> Exhibit:
    """A causal layer of attnhut that is given a mask which hides nothing."""
    return hut(f"{name}-causal-with-mask", "mask_lost", kind, *options, **more)


def empty(kind: str, *options: Any, name: str, **more: Any) -> Exhibit:
    """A layer of attzoo that is told of a row without a key; it returns weights after dropout."""
    mask = {"mask": PAIRS}
    return zoo(f"{name}-with-mask", "empty_row_nan", kind, *options, facts=SEEN, given=mask,
               dropout=0.0, **more)  # fmt: skip


BROKEN = [
    dropped("StandardAttention", HEADS, name="standard", causal=True),
    dropped("GroupedQueryAttention", HEADS, 2, name="grouped", causal=True),
    dropped("MultiQueryAttention", HEADS, name="multi-query", causal=True),
    dropped("MultiHeadLatentAttention", HEADS, name="latent"),
    hut("sparse-indexer", "gradient_dead", "DeepSeekSparseAttention", HEADS, top_k=4,
        index_head_dim=8, facts=UNKNOWN, given={}),
    hut("block-indexer", "gradient_dead", "MiniMaxSparseAttention", HEADS, 2, block_size=2,
        top_k=2, facts=UNKNOWN, given={}),
    hut("bigbird", "padding_leak", "BigBirdAttention", HEADS, block_size=2, num_random_blocks=1,
        num_global_blocks=1, facts=Facts(real=True), given={"key_padding_mask": KEEP.bool()}),
    hut("slots", "nondeterministic_eval", "SlotAttention", 4, facts=UNKNOWN, given={}),
    auto("dense-causal-with-mask", "mask_lost", "DenseAttention", ~ALL_PAIRS,
         Facts(seen=False, causal=True)),
    auto("flash-causal-with-mask", "mask_lost", "FlashAttention", ALL_PAIRS, CAUSAL),
    auto("local-with-mask", "mask_lost", "LocalAttention", ALL_PAIRS, CAUSAL),
    zoo("multi-head", "weights_after_dropout", "MultiHeadSelfAttention", HEADS),
    zoo("rotary", "weights_after_dropout", "MultiHeadSelfAttention", HEADS, rope=True),
    zoo("grouped", "weights_after_dropout", "GroupedSelfAttention", HEADS, 2),
    zoo("local", "weights_after_dropout", "LocalSelfAttention", window_size=4, num_heads=HEADS),
    zoo("dilated", "weights_after_dropout", "DilatedSelfAttention", 2, HEADS),
    zoo("longformer", "weights_after_dropout", "LongformerSelfAttention", HEADS, window_size=4),
    zoo("hashing", "nondeterministic_eval", "LSHSelfAttention", HEADS, bucket_size=4, dropout=0.0),
    empty("MultiHeadSelfAttention", HEADS, name="multi-head"),
    empty("VanillaSelfAttention", name="vanilla"),
    empty("GroupedSelfAttention", HEADS, 2, name="grouped"),
    empty("BlockSelfAttention", name="block", block_size=4, num_heads=HEADS),
    *lucid.BROKEN,
    reads("ConvBertModel", "padding_leak", **SIZES, embedding_size=WIDTH, head_ratio=2),
    translates("MT5ForConditionalGeneration", "init_loss", **T5),
    sees("Dinov2Model", "unused_parameters", hidden_size=WIDTH, num_hidden_layers=2,
         num_attention_heads=HEADS, **IMAGE),
]  # fmt: skip

HEALTHY = [
    hut("standard", "", "StandardAttention", HEADS, facts=UNKNOWN, given={}),
    hut("standard-causal", "", "StandardAttention", HEADS, causal=True, facts=UNKNOWN, given={}),
    hut("standard-mask", "", "StandardAttention", HEADS, facts=SEEN),
    hut("grouped", "", "GroupedQueryAttention", HEADS, 2, causal=True, facts=UNKNOWN, given={}),
    hut("multi-query", "", "MultiQueryAttention", HEADS, causal=True, facts=UNKNOWN, given={}),
    hut("latent", "", "MultiHeadLatentAttention", HEADS, facts=UNKNOWN, given={}),
    hut("differential", "", "DifferentialAttention", HEADS, facts=UNKNOWN, given={}),
    hut("bigbird-near", "", "BigBirdAttention", HEADS, block_size=2, num_random_blocks=0,
        num_global_blocks=1, facts=Facts(real=True), given={"key_padding_mask": KEEP.bool()}),
    hut("delta", "", "DeltaAttention", HEADS, window=4, sink=1, stride=2, facts=UNKNOWN, given={}),
    hut("compressed", "", "HeavilyCompressedAttention", HEADS, compression_rate=2, window=4,
        facts=UNKNOWN, given={}),
    hut("sparse-indexer-loss", "", "DeepSeekSparseAttention", HEADS, top_k=4, index_head_dim=8,
        facts=UNKNOWN, given={"return_aux": True}),
    Exhibit("autoattn", named("autoattn", "AutoAttention", WIDTH, HEADS), (stream(),) * 3,
            package="autoattn"),
    zoo("multi-head-dry", "", "MultiHeadSelfAttention", HEADS, dropout=0.0),
    zoo("linear", "", "LinearSelfAttention", dropout=0.0),
]  # fmt: skip
