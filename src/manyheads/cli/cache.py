"""``manyheads cache``: what the cache of a model will take."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from rich import box
from rich.table import Table

from manyheads.cache import Cache, GrowingCache, QuantizedCache, RingCache, predict_bytes
from manyheads.cli.console import say
from manyheads.layers.checks import checked_head_dim, checked_kv_heads
from manyheads.models import DecoderConfig
from manyheads.shapes import check_count

DTypeName = Literal["float32", "float16", "bfloat16"]


class Way(NamedTuple):
    """One way to keep keys and values.

    Args:
        name: What it is called.
        kind: An empty cache.
        heads: Of keys and values.
        width: Of a key.
        value_dim: Of a value.
        bits: What a number is said to take; None = as many as the dtype has.
    """

    name: str
    kind: Cache
    heads: int
    width: int
    value_dim: int
    bits: int | None = None


def cache(
    *,
    model: str,
    length: tuple[int, ...] = (4096, 32768),
    batch: int = 1,
    dtype: DTypeName = "bfloat16",
) -> None:
    """Tell what a model's keys and values take, and would take with other heads or fewer bits.

    Args:
        model: A preset by its name, such as llama-3-8b; a wrong one is answered with all of them.
        length: Tokens of each row; may be given several times.
        batch: Rows.
        dtype: Of keys and values that are not rounded.
    """
    config, kind = DecoderConfig.preset(model), getattr(torch, dtype)
    table = Table(
        title=f"Keys and values of {model}: {config.num_layers} layers, batch {batch}, {dtype}",
        caption="promised: bits times numbers. asked: what the cache asks memory for, with scales "
        "and recent tokens that are not rounded yet. MLA as DeepSeek-V2 would size it.",
        box=box.SIMPLE,
    )
    for name in ("tokens", "cache", "promised", "asked", "a token", "of MHA"):
        table.add_column(name, justify="left" if name == "cache" else "right")
    for tokens in length:
        check_count("--length", tokens)
        for row in _rows(config, tokens, check_count("--batch", batch), kind):
            table.add_row(f"{tokens:,}", *row)
        table.add_section()
    say(table)


def _rows(
    config: DecoderConfig, tokens: int, batch: int, dtype: torch.dtype
) -> Iterator[tuple[str, ...]]:
    whole = 0
    for way in _ways(config):
        kept = min(tokens, way.kind.size) if isinstance(way.kind, RingCache) else tokens
        numbers = config.num_layers * batch * kept * way.heads * (way.width + way.value_dim)
        asked = predict_bytes(
            way.kind,
            tokens,
            num_kv_heads=way.heads,
            head_dim=way.width,
            value_dim=way.value_dim,
            num_layers=config.num_layers,
            batch=batch,
            dtype=dtype,
        )
        whole = whole or asked
        promised = numbers * (way.bits or 8 * dtype.itemsize) // 8
        each = f"{asked / tokens / batch:,.0f} B"
        yield way.name, _size(promised), _size(asked), each, f"{asked / whole:.1%}"


def _ways(config: DecoderConfig) -> Iterator[Way]:
    width = checked_head_dim(config.d_model, config.num_heads, config.head_dim)
    heads = checked_kv_heads(config.num_heads, config.num_kv_heads)
    own = {1: "MQA", config.num_heads: "MHA"}.get(heads, "GQA")
    for name, count in {"MHA": config.num_heads, own: heads, "MQA": 1}.items():
        mark = ", this model" if name == own else ""
        yield Way(f"{name}{mark}", GrowingCache(), count, width, width)
    # One latent of four heads' width for all, and a rotary key of half a head's.
    yield Way("MLA", GrowingCache(), 1, 4 * width + width // 2, 0)
    if config.window is not None:
        ring = RingCache(config.window)
        yield Way(f"{own}, window {config.window:,}", ring, heads, width, width)
    for bits in (8, 4):
        yield Way(f"{own}, int{bits}", QuantizedCache(bits), heads, width, width, bits)


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.2f} {unit}"
