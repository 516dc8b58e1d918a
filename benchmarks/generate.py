"""Writing with a decoder of Llama's manner beside Hugging Face, and with a cache beside none."""

import gc
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.utils.logging import disable_progress_bar

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row
from benchmarks.rounds import interleave, ratio
from manyheads.interop.huggingface import from_huggingface
from manyheads.interop.smollm2 import find_weights

PROMPT = 16
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FASTER = {("fp32", 1): 1.3, ("fp32", 8): 1.6, ("bf16", 1): 1.9, ("bf16", 8): 1.7}
"""How many times as fast as the better of theirs, by dtype and batch."""
SHARE = 0.7
"""Of a step of one row: its weights' bytes at the speed, read and written, of a copy."""


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
    tokens = torch.randint(4, 30000, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
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
    yield from _beside_none(plan)
    yield from _beside_theirs(plan)


def _beside_theirs(plan: Plan) -> Iterator[Row]:
    speed = _copy_speed(plan)
    for name, dtype in DTYPES.items():
        for batch in (1, 8):
            if f"llama, {name}, batch {batch}" not in plan.done:
                yield _race(plan, "llama", llama(plan, dtype), batch, 256, speed)
                gc.collect()
    for name, dtype in DTYPES.items():
        if f"smollm2, {name}, batch 1" not in plan.done:
            yield _race(plan, "smollm2", smollm2(dtype), 1, 64, speed)
            gc.collect()


def _race(
    plan: Plan, model: str, theirs: LlamaForCausalLM, batch: int, length: int, speed: float
) -> Row:
    dtype = next(name for name, dtype in DTYPES.items() if dtype is theirs.dtype)
    length = 4 if plan.effort == "quick" else length
    ways = contenders(theirs, batch, length)
    # Rounds of one row are short, and as many more of them as the interval needs to be narrow.
    times = interleave(ways, plan.choose(quick=2, usual=11 if batch == 1 else 5))
    # Where two tokens are equally likely but for rounding, texts part for good.
    same = (ways["ours"]() == ways["their dynamic"]()).long().cumprod(1).double().mean()
    best = min(("their dynamic", "their static"), key=lambda way: np.median(times[way]))
    weights = sum(p.nbytes for p in theirs.parameters())
    if not theirs.config.tie_word_embeddings:
        weights -= theirs.get_input_embeddings().weight.nbytes  # of which a step reads one row
    return {
        "cell": f"{model}, {dtype}, batch {batch}",
        "model": model,
        "dtype": dtype,
        "batch": batch,
        "new tokens": length,
        **{f"{way} ms/token": 1e3 * float(np.median(times[way])) / length for way in ways},
        "better / ours": vars(ratio(times[best], times["ours"])),
        "same text": float(same),
        "reading weights / ours": weights / speed * length / float(np.median(times["ours"])),
    }


def _copy_speed(plan: Plan) -> float:
    """Bytes a second that one thread reads and writes while it copies."""
    there = torch.ones(2**22 if plan.effort == "quick" else 2**26)
    here = torch.empty_like(there)
    times = interleave({"copy": lambda: here.copy_(there)}, 9)["copy"]
    return 2 * there.nbytes / float(np.median(times))


def smollm2(dtype: torch.dtype) -> LlamaForCausalLM:
    """Their model of a real one's weights, from the package that brings them."""
    path = str(find_weights())
    disable_progress_bar()
    config = LlamaConfig(**load_gguf_checkpoint(path)["config"])
    config.eos_token_id = config.bos_token_id = None
    with torch.device("meta"):
        empty = LlamaForCausalLM(config)
    state = load_gguf_checkpoint(path, return_tensors=True, model_to_load=empty)["tensors"]
    model = LlamaForCausalLM(config)
    missing = model.load_state_dict(state, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    return model.to(dtype).eval()


def _beside_none(plan: Plan) -> Iterator[Row]:
    length = 16 if plan.effort == "quick" else 512
    if f"cached, {length} tokens" in plan.done:
        return
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
        cell = [row for row in rows if row["cell"] == f"llama, {name}, batch {batch}"]
        goals.append(_goal(promise, cell, "better / ours", least))
    promise = "a cache pays: 512 tokens come sooner than without (lower end above 1)"
    found = [row for row in rows if "uncached / cached" in row]
    return [*goals, _reading(rows), _goal(promise, found, "uncached / cached", 1.0)]


def _reading(rows: Sequence[Row]) -> Goal:
    promise = f"one row: to read the weights at the speed of a copy takes {SHARE:.0%} of a step"
    found = [row["reading weights / ours"] for row in rows if row.get("batch") == 1]
    if not found:
        return Goal(promise, None, "")
    return Goal(promise, min(found) >= SHARE, f"{min(found):.0%} to {max(found):.0%}")


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
