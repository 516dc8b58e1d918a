"""Pages of all heads of one model, by us and by others, each made in a process of its own.

    pip install -e .[peers]
    pip install --no-deps attnread bertviz

None of them is needed; a table says which are missing. Their functions are called as their own
pages show, and with what they need: the weights of all layers, from the eager model.
"""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import manyheads as mh

LAYERS, HEADS, D_MODEL, WORDS = 12, 12, 192, 5000


def model_of(length: int, *, eager: bool) -> nn.Module:
    """GPT-2's shape in small: random weights, large enough that heads differ."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=length,
        n_embd=D_MODEL,
        n_layer=LAYERS,
        n_head=HEADS,
        initializer_range=0.1,
        attn_implementation="eager" if eager else "sdpa",
    )
    return GPT2Model(config).eval()


def _ours(ids: Tensor, words: list[str], path: Path) -> None:
    model = model_of(len(words), eager=False)
    keep = partial(mh.lens.portray, tokens=ids)
    with torch.no_grad(), mh.probe.watch(model, each=keep) as found:
        model(ids, use_cache=False)
    mh.lens.write_page(list(found), words, path=path)


def _weights(ids: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        found = model_of(ids.shape[1], eager=True)(ids, output_attentions=True, use_cache=False)
    return tuple(found.attentions)


def _bertviz(ids: Tensor, words: list[str], path: Path) -> None:
    from bertviz import model_view

    path.write_text(model_view(list(_weights(ids)), words, html_action="return").data)


def _attnview(ids: Tensor, words: list[str], path: Path) -> None:
    import attnview

    names = (f"blocks.{layer}.attn.hook_pattern" for layer in range(LAYERS))
    attnview.export_cache(dict(zip(names, _weights(ids), strict=True)), path, tokens=words)


def _circuitsvis(ids: Tensor, words: list[str], path: Path) -> None:
    from circuitsvis.attention import attention_heads

    # Its page for who has no network; the other one asks a CDN.
    path.write_text(attention_heads(torch.cat(_weights(ids), dim=1)[0], words).local_src)


def _inspectus(ids: Tensor, words: list[str], path: Path) -> None:
    import inspectus

    parts: list[Any] = []
    with patch("IPython.display.display", parts.append):
        inspectus.attention(list(_weights(ids)), words)
    path.write_text("".join(part.data for part in parts))


VIEWERS: dict[str, Callable[[Tensor, list[str], Path], None]] = {
    "ours": _ours,
    "bertviz": _bertviz,
    "attnview": _attnview,
    "circuitsvis": _circuitsvis,
    "inspectus": _inspectus,
}
"""Each takes the ids of a text, its words and a path."""


def make(viewer: str, length: int, path: Path, timeout: float) -> dict[str, float] | str:
    """Let a process of its own make a page: seconds and the most bytes held, or why there is none.

    Seconds go from the model to the file; bytes are those beyond what was loaded before.
    """
    told = (viewer, str(length), str(path), str(torch.get_num_threads()))
    command = [sys.executable, "-c", "from benchmarks.viewers import run; run()", *told]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"not done in {timeout:.0f} s"
    if done.returncode:
        lacking = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", done.stderr)
        if lacking:
            return f"not installed: {lacking[1]}"
        lines = done.stderr.strip().splitlines() or [f"ended by signal {-done.returncode}"]
        return lines[-1]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run() -> None:
    """Make the page that the command line asks for, and print what it took."""
    viewer, length, path, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    # A text in which words come again, the frequent ones often, as in any text.
    ids = (WORDS * torch.rand(1, int(length)) ** 3).long()
    words = [f"word{number}" for number in ids[0].tolist()]
    VIEWERS[viewer](ids[:, :16], words[:16], Path(path))  # what is loaded and made once
    before = _most_held()
    clocks = time.perf_counter(), time.process_time()
    VIEWERS[viewer](ids, words, Path(path))
    wall, cpu = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    print(json.dumps({"seconds": wall, "CPU seconds": cpu, "bytes": _most_held() - before}))


def _most_held() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
