"""``manyheads demo``: the whole journey on real data, in two minutes."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from rich.table import Table
from rich.text import Text

from manyheads.cli.console import say
from manyheads.cli.failure import FAILED
from manyheads.cli.heads import look_at
from manyheads.lens import draw_heads
from manyheads.lens.labels import pair
from manyheads.shapes import check_count
from manyheads.tasks import Dates, Example
from manyheads.training import (
    HeadMass,
    Recipe,
    Trained,
    alignment_mass,
    exact_match,
    quickest_threads,
    small_config,
    train,
)

# What the demo promises; it says so and fails if it does not keep it.
LEAST_RIGHT, LEAST_MASS = 0.995, 0.85
SHOWN, MEASURED = 10, 1000
PICTURED = "zh"


def demo(*, out: Path = Path("demo"), threads: int | None = None, quiet: bool = False) -> int:
    """Train on dates of many languages, translate, and see which head reads what.

    Args:
        out: The folder for the model, its logs and heads.png; an earlier demo is replaced.
        threads: How many threads torch uses in an operation; by default the faster of one and
            torch's own number, which is measured first.
        quiet: Without the progress bar.
    """
    started = time.perf_counter()
    task = Dates()
    if threads is None:
        threads = quickest_threads(task, small_config(task))
    torch.set_num_threads(check_count("--threads", threads))
    say(f"Dates in {len(task.locales)} languages -> ISO 8601, held out by calendar date.")
    trained = train(task, Recipe(), out=out, progress="none" if quiet else "bar")
    test = task.split("test")
    right = exact_match(trained, test)
    dates = len({example.unit for example in test})
    say(
        f"\n{right:.2%} of {len(test)} texts of {dates} unseen dates are exactly right. "
        f"{SHOWN} of them:\n"
    )
    say(_translations(trained, _one_of_each(test)))

    masses = alignment_mass(trained, test[:MEASURED])
    best = best_heads({field: masses[field] for field in dict.fromkeys(test[0].fields) if field})
    say(f"\nThe heads that read each field, and their weight on its characters ({MEASURED} dates):")
    for field, head in best.items():
        say(f"  {field:6}{head}")
    picture = out / "heads.png"
    draw_named_heads(trained, best, next(e for e in test if e.kind.startswith(PICTURED)), picture)
    say(f"\nEvery head is drawn in {picture}, those above with what they should read outlined.")
    say(_speed(trained, [example.source for example in test[:MEASURED]]))
    say(f"All of it took {time.perf_counter() - started:.0f} s.")
    say(f'Try a date of your own: manyheads look {out} "May 4, 1979" --out date.html')

    kept = right >= LEAST_RIGHT and all(head.mass >= LEAST_MASS for head in best.values())
    if not kept:
        say(f"That is short of what it should be: {LEAST_RIGHT:.1%} right, {LEAST_MASS} a field.")
    return 0 if kept else FAILED


def _one_of_each(examples: Sequence[Example]) -> list[Example]:
    """Ten examples of as many languages and styles as there are, languages first."""
    by_locale: dict[str, Example] = {}
    by_kind: dict[str, Example] = {}
    for example in examples:
        by_locale.setdefault(example.kind.split()[0], example)
        by_kind.setdefault(example.kind, example)
    others = [example for example in by_kind.values() if example not in by_locale.values()]
    return [*by_locale.values(), *others][:SHOWN]


def _translations(trained: Trained, examples: Sequence[Example]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("language", "written", "read as", ""):
        table.add_column(name, no_wrap=True)
    answers = trained.write([example.source for example in examples])
    for example, answer in zip(examples, answers, strict=True):
        verdict = "right" if answer == example.target else f"wrong: {example.target}"
        table.add_row(example.kind, Text(example.source), answer, verdict)
    return table


def best_heads(masses: dict[str, list[HeadMass]]) -> dict[str, HeadMass]:
    """Give each field the head that reads it best; of heads that read alike, one of its own.

    Args:
        masses: By field, all heads, the best first. Those alike are those that print alike.
    """
    best: dict[str, HeadMass] = {}
    for field, heads in masses.items():
        taken = {head[:2] for head in best.values()}
        alike = [head for head in heads if f"{head.mass:.2f}" == f"{heads[0].mass:.2f}"]
        best[field] = next((head for head in alike if head[:2] not in taken), heads[0])
    return best


def draw_named_heads(
    trained: Trained, best: dict[str, HeadMass], example: Example, path: Path
) -> None:
    """Draw all heads on one example; those that read a field get its name and its outline.

    Args:
        trained: The model.
        best: By field, the head that reads it best.
        example: With the alignment that is known to be right.
        path: Where to.
    """
    sight = look_at(trained, example.source)
    names: dict[tuple[str, int], str] = {}
    marks: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for field, head in best.items():
        place = (head.attention, head.head)
        # One head may read several fields.
        names[place] = (
            f"{names[place]}, {field}" if place in names else f"head {head.head}: {field}"
        )
        marks.setdefault(place, []).extend(
            (query, key)
            for query, name in enumerate(example.fields[: len(sight.answer)])
            for key in example.alignment[query]
            if name == field
        )
    title = pair(example.source, sight.answer)
    draw_heads(
        sight.weights, sight.queries, sight.keys, title=title, names=names, marks=marks, path=path
    )


def _speed(trained: Trained, texts: Sequence[str], rounds: int = 3) -> str:
    """Time writing with and without the cache, turn and turn about."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    characters = 0
    for _ in range(rounds):
        for cached, taken in seconds.items():
            began = time.perf_counter()
            characters = sum(len(answer) + 1 for answer in trained.write(texts, cached=cached))
            taken.append(time.perf_counter() - began)
    with_cache, without = median(seconds[True]), median(seconds[False])
    return (
        f"Writing {characters / with_cache:,.0f} characters a second with the cache, "
        f"{characters / without:,.0f} without: {without / with_cache:.1f} times as fast."
    )
