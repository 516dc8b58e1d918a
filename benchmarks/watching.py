"""What it costs to see every head of a whole model, beside its plain forward and other ways."""

import contextlib
import importlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import manyheads as mh
from benchmarks.benchmark import Benchmark, Goal, Plan, Row, every
from benchmarks.libraries import note
from benchmarks.rounds import interleave, ratio
from benchmarks.statistics import QUESTIONS
from manyheads.functional import cost

WORDS = 1000
CELLS = (("Llama", 512), ("Llama", 2048), ("Llama", 8192), ("BERT", 512), ("BERT", 2048))
LAYERS_AND_HEADS = {"Llama": (4, 8), "BERT": (12, 12)}
MOST_HELD = 2e9
"""Bytes of weights that another may hold."""

_ROWS = QUESTIONS["lse, entropy, sink, self, previous"][0]

Step = Callable[[], object]


def model_of(shape: str, length: int, attention: str, *, headed: bool = False) -> nn.Module:
    """A model of random weights: 4 layers of 8 heads (2 for keys), or BERT's base.

    Args:
        shape: "Llama" or "BERT".
        length: How many positions it has.
        attention: How it attends, in transformers' words.
        headed: Whether it predicts words.
    """
    theirs: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    kind = "BertForMaskedLM" if shape == "BERT" else "LlamaForCausalLM"
    own: dict[str, Any] = {
        "vocab_size": WORDS,
        "max_position_embeddings": length,
        "attn_implementation": attention,
        "architectures": [kind],
    }
    if shape == "BERT":
        config = theirs.BertConfig(**own)
    else:
        config = theirs.LlamaConfig(
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=2,
            **own,
        )
    return getattr(theirs, kind if headed else f"{shape.title()}Model")(config).eval()


def _ours(shape: str, ids: Tensor) -> Step:
    model = model_of(shape, ids.shape[1], "sdpa")

    def watch() -> object:
        with torch.no_grad(), mh.probe.watch(model, each=_ROWS) as found:
            model(ids, use_cache=False)
        return found

    return watch


def _eager(shape: str, ids: Tensor) -> Step:
    model = model_of(shape, ids.shape[1], "eager")
    return lambda: _plainly(model, ids, output_attentions=True)


def _attnread(shape: str, ids: Tensor) -> Step:
    from attnread import extract_attention

    if shape == "BERT":
        raise ImportError("it knows no BERT")
    model = model_of(shape, ids.shape[1], "sdpa")
    return partial(extract_attention, model, {"input_ids": ids}, [(0, 0)])


def _transformer_lens(shape: str, ids: Tensor) -> Step:
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    model = model_of(shape, ids.shape[1], "eager", headed=True)
    nothing = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words = PreTrainedTokenizerFast(tokenizer_object=nothing, bos_token="[UNK]")
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        words.save_pretrained(folder)  # it asks for one, and for where that came from
        boot = TransformerBridge.boot_transformers
        bridge = boot(folder, hf_model=model, device="cpu")

    def run() -> object:
        with torch.no_grad():
            return bridge.run_with_cache(ids, names_filter=lambda name: "hook_pattern" in name)

    return run


OTHERS: dict[str, Callable[[str, Tensor], Step]] = {
    "eager": _eager,
    "transformer-lens": _transformer_lens,
    "attnread, one head": _attnread,
}


def _plainly(model: nn.Module, ids: Tensor, **options: bool) -> object:
    with torch.no_grad():
        return model(ids, use_cache=False, **options)


def _held(name: str, shape: str, length: int) -> float:
    """The bytes of the weights that another way holds."""
    layers, heads = LAYERS_AND_HEADS[shape]
    return 4.0 * length**2 * (1 if "one head" in name else layers * heads)


def measure(plan: Plan) -> Iterator[Row]:
    for shape, length in (("Llama", 128),) if plan.effort == "quick" else CELLS:
        cell = f"{shape} {length}"
        if cell in plan.done:
            continue
        ids = torch.randint(WORDS, (1, length))
        plain = partial(_plainly, model_of(shape, length, "sdpa"), ids)
        steps: dict[str, Step] = {"plain": plain, "ours": _ours(shape, ids)}
        few = {
            name: make for name, make in OTHERS.items() if _held(name, shape, length) < MOST_HELD
        }
        if length > 2048:
            few = {}
        for name, make in few.items():
            with contextlib.suppress(ImportError):
                steps[name] = make(shape, ids)
        times = interleave(steps, plan.choose(quick=1, usual=2 if length > 2048 else 5))
        peaks = {name: cost.peak_bytes(step, torch.device("cpu")) for name, step in steps.items()}
        row: Row = {"cell": cell, "plain ms": 1e3 * float(np.median(times["plain"]))}
        for name in ("ours", *OTHERS):
            known = name in steps
            row[f"{name} / plain"] = vars(ratio(times[name], times["plain"])) if known else None
            row[f"{name} extra MB"] = (peaks[name] - peaks["plain"]) / 1e6 if known else None
        yield {**row, "note": note(few, steps)}


def judge(rows: Sequence[Row]) -> list[Goal]:
    promise = "lse, entropy, sink, self and previous of all heads: at most 2 times the plain model"
    return [every(promise, rows, "ours / plain", lambda row: 2.0)]


def draw(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(7, 4))
    axes = figure.add_subplot(ylabel="CPU time, in plain forwards of the model")
    for shift, name in enumerate(("ours", *OTHERS)):
        known = [(at, row) for at, row in enumerate(rows) if row.get(f"{name} / plain")]
        places = [at + 0.2 * shift for at, _ in known]
        axes.bar(places, [r[f"{name} / plain"]["median"] for _, r in known], 0.2, label=name)
    axes.set_yscale("log")
    axes.set_xticks([at + 0.3 for at in range(len(rows))], [row["cell"] for row in rows])
    axes.legend()
    return figure


WATCHING = Benchmark(
    "watching",
    "What does it cost to see every head of a model, beside its plain forward and other ways?",
    ("cell",),
    measure,
    judge,
    draw,
)
