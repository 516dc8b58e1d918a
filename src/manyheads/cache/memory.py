"""What a cache will take, before there is one."""

import copy
from dataclasses import dataclass

import torch

from manyheads.cache.base import Cache
from manyheads.cache.growing import GrowingCache
from manyheads.cache.quantized import QuantizedCache
from manyheads.cache.ring import RingCache
from manyheads.errors import CacheError
from manyheads.shapes import check_count


def predict_bytes(
    cache: Cache,
    length: int,
    *,
    num_kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    num_layers: int = 1,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
) -> int:
    """Bytes that caches of a kind will take, to the byte what their `memory_bytes` will say.

    A copy of the cache is given a prompt without memory, on torch's meta device, and asked. Text
    that comes token by token takes spare room beside: half as much again where a cache grows.

    Args:
        cache: An empty one, such as ``QuantizedCache(4)``; it is left as it is.
        length: Tokens of each row.
        num_kv_heads: Heads of keys and values.
        head_dim: Width of a key.
        value_dim: Width of a value; None = `head_dim`.
        num_layers: Layers, of which each has a cache.
        batch: Rows.
        dtype: Of keys and values.

    Raises:
        CacheError: If the cache holds tokens, or the text does not fit into it.
        OptionError: If a number counts nothing.

    Example:
        >>> import manyheads as mh
        >>> llama = {"num_layers": 32, "head_dim": 128}  # in bf16, 8192 tokens
        >>> mh.predict_bytes(mh.GrowingCache(), 8192, num_kv_heads=32, **llama) / 2**30
        4.0
        >>> mh.predict_bytes(mh.GrowingCache(), 8192, num_kv_heads=8, **llama) / 2**30
        1.0
    """
    if cache.length:
        raise CacheError(
            f"cache must be an empty one to predict from; got one of {cache.length} tokens. Ask "
            f"a filled one for its memory_bytes()."
        )
    for name, value in (("num_layers", num_layers), ("batch", batch), ("head_dim", head_dim)):
        check_count(name, value)
    check_count("length", length, least=0)
    check_count("num_kv_heads", num_kv_heads)
    width = head_dim if value_dim is None else check_count("value_dim", value_dim, least=0)
    k, v = (
        torch.empty(batch, num_kv_heads, length, size, dtype=dtype, device="meta")
        for size in (head_dim, width)
    )
    filled = copy.deepcopy(cache)
    filled.append(k, v)
    return num_layers * filled.memory_bytes()


@dataclass(frozen=True)
class MemoryTable:
    """Bytes of a text's keys and values, one row for each way to keep them; prints as a table.

    Args:
        rows: Name, bytes.
        length: Tokens of the text.
    """

    rows: tuple[tuple[str, int], ...]
    length: int

    def __getitem__(self, name: str) -> int:
        return dict(self.rows)[name]

    def __str__(self) -> str:
        first = self.rows[0][1]
        width = max(len(name) for name, _ in self.rows)
        lines = [f"{'cache':<{width}}  {'bytes':>16}  {'a token':>9}   share"]
        for name, size in self.rows:
            token = size / self.length
            lines.append(f"{name:<{width}}  {size:>16,}  {token:>9,.0f}  {size / first:>6.1%}")
        return "\n".join(lines)

    __repr__ = __str__


def compare_memory(
    length: int,
    *,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int | None = None,
    latent_dim: int | None = None,
    window: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> MemoryTable:
    """What the ways to keep a text's keys and values cost, side by side.

    Args:
        length: Tokens of the text.
        num_layers: Layers of the model.
        num_heads: Query heads; MHA has as many of keys and values.
        head_dim: Width of a head.
        num_kv_heads: Those of GQA; None leaves it out.
        latent_dim: Width of MLA's latent with its shared rotary key; None leaves it out.
        window: Tokens of a sliding window; None leaves it out.
        dtype: Of keys and values that are not rounded.

    Source:
        MQA, Shazeer 2019 (arXiv:1911.02150); GQA, Ainslie et al. 2023 (arXiv:2305.13245); MLA,
        DeepSeek-AI 2024 (arXiv:2405.04434).

    Example:
        >>> import manyheads as mh
        >>> mh.compare_memory(8192, num_layers=32, num_heads=32, head_dim=128, num_kv_heads=8)
        cache                 bytes    a token   share
        MHA           4,294,967,296    524,288  100.0%
        GQA           1,073,741,824    131,072   25.0%
        MQA             134,217,728     16,384    3.1%
        GQA, int8       567,074,816     69,223   13.2%
        GQA, int4       300,736,512     36,711    7.0%
    """
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    name = "MHA" if num_kv_heads is None else "GQA"

    def size(cache: Cache, heads: int, width: int = head_dim, value_dim: int | None = None) -> int:
        return predict_bytes(
            cache,
            length,
            num_kv_heads=heads,
            head_dim=width,
            value_dim=value_dim,
            num_layers=num_layers,
            dtype=dtype,
        )

    rows = [("MHA", size(GrowingCache(), num_heads))]
    if num_kv_heads is not None:
        rows.append(("GQA", size(GrowingCache(), kv_heads)))
    rows.append(("MQA", size(GrowingCache(), 1)))
    if latent_dim is not None:
        rows.append(("MLA", size(GrowingCache(), 1, latent_dim, 0)))
    if window is not None:
        rows.append((f"{name}, window", size(RingCache(window), kv_heads)))
    rows += [
        (f"{name}, int8", size(QuantizedCache(8), kv_heads)),
        (f"{name}, int4", size(QuantizedCache(4), kv_heads)),
    ]
    return MemoryTable(tuple(rows), length)
