"""Writing with a decoder of Llama's manner beside Hugging Face, and with a cache beside none."""

import gc
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import LlamaConfig, LlamaForCausalLM

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.rounds import interleave, ratio
from manyheads.interop.huggingface import from_huggingface

PROMPT = 16
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FASTER = {("fp32", 1): 1.3, ("fp32", 8): 1.6, ("bf16", 1): 1.9, ("bf16", 8): 1.7}
"""How many times as fast as the better of theirs, by dtype and batch."""


def llama(plan: Plan, dtype: torch.dtype) -> LlamaForCausalLM:
    """Their model with random weights, of which ours takes the same."""
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8}
    if plan.effort == "quick":
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    torch.manual_seed(0)
    # No text ends early: theirs has no token that would end it, ours none unless told.
    config = LlamaConfig(
        vocab_size=32000, num_attention_heads=8, num_key_value_heads=2, eos_token_id=None,
        bos_token_id=None, pad_token_id=0, **sizes,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


def contenders(
    theirs: LlamaForCausalLM, batch: int, length: int
) -> dict[str, Callable[[], torch.Tensor]]:
    """Ways to write the same text, each without the prompt."""
    ours = from_huggingface(theirs)
    tokens = torch.randint(4, 32000, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
    there = torch.ones_like(tokens)

    def write(**options: str) -> torch.Tensor:
        text = theirs.generate(
            tokens, attention_mask=there, max_new_tokens=length, do_sample=False, **options
        )  # fmt: skip
        return text[:, PROMPT:]

    return {
        "ours": lambda: mh.generate(ours, tokens, max_new_tokens=length),
        "their dynamic": write,
        "their static": lambda: write(cache_implementation="static"),
    }


def measure(plan: Plan) -> Iterator[Row]:
    yield from _beside_theirs(plan)
    yield from _beside_none(plan)


def _beside_theirs(plan: Plan) -> Iterator[Row]:
    length = 4 if plan.effort == "quick" else 256
    for name, dtype in DTYPES.items():
        theirs = llama(plan, dtype)
        for batch in (1, 8):
            ways = contenders(theirs, batch, length)
            times = interleave(ways, plan.choose(quick=2, usual=7))
            # Where two tokens are equally likely but for rounding, texts part for good.
            same = (ways["ours"]() == ways["their dynamic"]()).long().cumprod(1).double().mean()
            best = min(("their dynamic", "their static"), key=lambda way: np.median(times[way]))
            yield {
                "cell": f"{name}, batch {batch}",
                "dtype": name,
                "batch": batch,
                "new tokens": length,
                **{f"{way} ms/token": 1e3 * float(np.median(times[way])) / length for way in ways},
                "better / ours": vars(ratio(times[best], times["ours"])),
                "same text": float(same),
            }
        gc.collect()


def _beside_none(plan: Plan) -> Iterator[Row]:
    length = 16 if plan.effort == "quick" else 512
    torch.manual_seed(0)
    config = mh.DecoderConfig(
        vocab_size=512, d_model=256, num_heads=8, num_layers=4, d_hidden=688, num_kv_heads=2
    )
    model, tokens = mh.Decoder(config).eval(), torch.randint(0, 512, (1, PROMPT))
    times = interleave(
        {
            "cached": lambda: mh.generate(model, tokens, max_new_tokens=length),
            "uncached": lambda: mh.generate(model, tokens, max_new_tokens=length, cache=None),
        },
        plan.choose(quick=2, usual=5),
    )
    yield {
        "cell": f"cached, {length} tokens",
        "new tokens": length,
        **{f"{way} ms/token": 1e3 * float(np.median(times[way])) / length for way in times},
        "uncached / cached": vars(ratio(times["uncached"], times["cached"])),
    }


def judge(rows: Sequence[Row]) -> list[Goal]:
    goals = []
    for (name, batch), least in FASTER.items():
        promise = f"{name}, batch {batch}: {least} times as fast as the better cache of theirs"
        found = [r for r in rows if (r.get("dtype"), r.get("batch")) == (name, batch)]
        goals.append(_goal(promise, found, "better / ours", least))
    promise = "a cache pays: 512 tokens come sooner than without (lower end above 1)"
    found = [row for row in rows if "uncached / cached" in row]
    return [*goals, _goal(promise, found, "uncached / cached", 1.0)]


def _goal(promise: str, rows: Sequence[Row], name: str, least: float) -> Goal:
    if not rows:
        return Goal(promise, None, "")
    found = rows[0][name]
    numbers = f"{found['median']:.2f} ({found['low']:.2f}-{found['high']:.2f})"
    return Goal(promise, found["low"] >= least, numbers)


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(8, 4))
    axes = figure.add_subplot()
    these = [row for row in rows if "dtype" in row]
    for shift, way in enumerate(("ours", "their dynamic", "their static")):
        places = [x + 0.25 * shift for x in range(len(these))]
        axes.bar(places, [row[f"{way} ms/token"] for row in these], width=0.25, label=way)
    axes.set_xticks([x + 0.25 for x in range(len(these))], [row["cell"] for row in these])
    axes.set_ylabel("CPU time of a step, ms")
    axes.legend()
    return figure


GENERATE = Benchmark(
    "generate",
    "How fast does a decoder of Llama's manner write (512 wide, 8 layers, 32,000 tokens)?",
    ("cell",),
    measure,
    judge,
    draw,
)
