"""``manyheads compare``: an approximation beside exact attention, on this machine."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from manyheads.cli.console import say
from manyheads.functional import (
    RandomFeatures,
    attention,
    linear_attention,
    linformer_attention,
    lsh_attention,
    nystrom_attention,
    performer_attention,
)
from manyheads.functional import compare as compare_functions
from manyheads.functional.compare import Function
from manyheads.masks import parse_mask
from manyheads.shapes import check_count

MethodName = Literal["linear", "performer", "lsh", "nystrom", "linformer"]
FeatureName = Literal["elu", "relu", "softplus", "taylor"]
LONGEST = 2**16


def compare(
    method: MethodName,
    /,
    *,
    length: int = 512,
    lengths: list[int] | None = None,
    batch: int = 1,
    heads: int = 8,
    head_dim: int = 64,
    sharpness: float = 1.0,
    mask: str | None = None,
    feature: FeatureName = "elu",
    features: int = 256,
    bucket_size: int = 64,
    rounds: int = 4,
    landmarks: int = 64,
    slots: int = 64,
    out: Path | None = None,
    seed: int = 0,
) -> None:
    """Tell how far an approximation is off, and from which length on it is faster here.

    Queries, keys and values are random; what a trained model has may be easier or harder.

    Args:
        method: The approximation.
        length: At which errors are measured, in tokens.
        lengths: At which time and memory are measured; doubling for ten seconds unless given.
        batch: Sequences in a batch.
        heads: Query heads, and key and value heads.
        head_dim: Width of a head.
        sharpness: The standard deviation of the scores.
        mask: As written in Python: "Causal()".
        feature: The feature map of linear.
        features: Random features of performer.
        bucket_size: Tokens in a bucket of lsh.
        rounds: Hashes of lsh.
        landmarks: Of nystrom.
        slots: Of linformer, whose projection is random here.
        out: Also draw a picture; .png, .svg or .pdf.
        seed: Of all random numbers.
    """
    counts = {"length": length, "batch": batch, "heads": heads, "head-dim": head_dim}
    for name, count in counts.items():
        check_count(f"--{name}", count)
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(3, batch, heads, length, head_dim, generator=generator)
    q, k, v = (made[0] * sharpness, made[1], made[2])
    exact: Function = attention
    approximate: Callable[..., torch.Tensor]
    if method == "linear":
        approximate = partial(linear_attention, feature=feature)
    elif method == "performer":
        drawn = RandomFeatures(head_dim, features, generator=generator)
        approximate = partial(performer_attention, features=drawn)
    elif method == "lsh":
        # Keys of norm 1, so that scores are as sharp with scale 1.
        approximate = partial(lsh_attention, bucket_size=bucket_size, rounds=rounds, itself="seen")
        exact, k = _unit_keys, q
    elif method == "nystrom":
        approximate = partial(nystrom_attention, landmarks=landmarks)
    else:
        longest = max(LONGEST, length, *(lengths or ()))
        projection = torch.randn(slots, longest, generator=generator) * slots**-0.5
        approximate = partial(linformer_attention, key_projection=projection)
    found = compare_functions(
        exact,
        approximate,
        q,
        k,
        v,
        None if mask is None else parse_mask(mask),
        lengths=lengths,
        names=("attention", f"{method}_attention"),
    )
    if out is not None:
        # Drawn first, so that a picture which cannot be written is no surprise below the table.
        from manyheads.lens.costs import draw_comparison

        draw_comparison(found, path=out)
    say(str(found))
    say("")
    say(found.chart())
    if out is not None:
        say(f"Time and memory are drawn in {out}")


def _unit_keys(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object = None
) -> torch.Tensor:
    """Exact attention of lsh's kind: keys of norm 1, and no scale."""
    unit = torch.nn.functional.normalize(k, dim=-1)
    return attention(q, unit, v, mask, scale=1.0)  # type: ignore[arg-type]
