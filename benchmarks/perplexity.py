"""What fewer bits of keys and values cost a real model: SmolLM2 reads a page of this project."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from manyheads.cache import Cache
from manyheads.interop.smollm2 import SmolLM2

PAGE = Path(__file__).parents[1] / "docs" / "contract.md"
CHUNK, TOKENS = 32, 1024
CACHES: dict[str, Callable[[], Cache]] = {
    "exact": mh.GrowingCache,
    "int8": lambda: mh.QuantizedCache(8),
    "int4": lambda: mh.QuantizedCache(4),
}


def measure(plan: Plan) -> Iterator[Row]:
    chat = SmolLM2.load()
    text = PAGE.read_text(encoding="utf-8")
    ids = chat.tokenizer.encode(text).ids[: 64 if plan.effort == "quick" else TOKENS]
    exact = 0.0
    for name, kind in CACHES.items():
        caches = chat.decoder.new_caches(kind)
        found = _perplexity(chat.decoder, torch.tensor([ids]), caches)
        exact = exact or found
        yield {
            "cell": name,
            "tokens": len(ids),
            "perplexity": found,
            "change": found / exact - 1,
            "MiB": sum(cache.memory_bytes() for cache in caches) / 2**20,
        }


@torch.no_grad()
def _perplexity(model: mh.Decoder, tokens: Tensor, caches: list[Cache]) -> float:
    """Read in chunks, so that all but the newest keys come out of the cache as it keeps them."""
    logits = [model(chunk, caches=caches) for chunk in tokens.split(CHUNK, dim=1)]
    told = torch.cat(logits, dim=1)[0, :-1].double()
    return float(torch.nn.functional.cross_entropy(told, tokens[0, 1:]).exp())


def judge(rows: Sequence[Row]) -> list[Goal]:
    kept = {row["cell"]: row for row in rows}
    goals = []
    for name, most in (("int8", 0.01), ("int4", 0.1)):
        promise = f"{name} changes the perplexity of SmolLM2 by at most {most:.0%}"
        row = kept.get(name)
        goals.append(
            Goal(promise, None, "")
            if row is None
            else Goal(promise, abs(row["change"]) <= most, f"{row['change']:+.2%}")
        )
    return goals


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(6, 3))
    axes = figure.add_subplot()
    axes.bar([row["cell"] for row in rows], [row["perplexity"] for row in rows])
    axes.set_ylabel("perplexity")
    return figure


PERPLEXITY = Benchmark(
    "perplexity",
    "What does it cost a real model, SmolLM2-135M, to keep keys and values in few bits?",
    ("cell",),
    measure,
    judge,
    draw,
)
