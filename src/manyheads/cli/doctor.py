"""``manyheads doctor``: what is wrong with a model's attention, and where."""

from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter
from rich.table import Table

from manyheads.cli.console import say
from manyheads.cli.failure import FAILED
from manyheads.cli.signature import check_inputs
from manyheads.cli.target import facts_of, find, guessed, inputs_of
from manyheads.doctor import CHECKS, Check, examine
from manyheads.errors import ExamineError, nearest
from manyheads.files import PAGES, check_path, write_text


def doctor(
    target: str | None = None,
    /,
    *,
    inputs: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    fact: list[str] | None = None,
    json: Path | None = None,
    html: Path | None = None,
    listed: Annotated[bool, Parameter(name="--list")] = False,
    explain: str | None = None,
    seed: int = 0,
) -> int:
    """Tell what is wrong with a model's attention, where, how it shows, and what cures it.

    Exit code 0: healthy. 1: something was found. 2: it could not be examined.

    Args:
        target: ``file.py:name``, where the name is a module, a factory of one, or either with an
            example of its input; or a folder with a trained model, ours or Hugging Face's.
        inputs: An example for each argument: 2x13x24 (floats), 2x13:40 (ids below 40), a name in
            the file; ``attention_mask=keep`` passes it by name. Guessed unless given.
        fact: What the model is meant to be, such as causal=True; see docs/doctor.md.
        json: Also write the report there, for machines.
        html: Also write it there as a page for a browser, with pictures of the evidence.
        listed: List every check instead.
        explain: Explain one code instead.
        seed: Of all random numbers.
    """
    if listed:
        say(_table())
        return 0
    if explain is not None:
        say(_explained(explain))
        return 0
    if target is None:
        raise ExamineError(
            "target must be file.py:name; got target=None. --list shows every check, --explain "
            "CODE one of them."
        )
    # Refused before a minute is spent on what to write.
    if json is not None:
        check_path(json, example="report.json")
    if html is not None:
        check_path(html, example="report.html", endings=PAGES)
    torch.manual_seed(seed)
    model, example, source = find(target)
    if inputs:
        example = inputs_of(inputs, source)
    args, kwargs = guessed(model) if example is None else example
    check_inputs(model, args, kwargs)
    report = examine(model, *args, facts=facts_of(fact or []), **kwargs)
    say(report.__rich__())
    if json is not None:
        write_text(json, report.to_json() + "\n")
    if html is not None:
        report.write_html(html)
    return 0 if report.healthy else FAILED


def _table() -> Table:
    table = Table("code", "severity", "what is wrong", box=None, pad_edge=False)
    for check in CHECKS:
        table.add_row(check.code, check.severity, check.title)
    return table


def _explained(code: str) -> str:
    checks: dict[str, Check] = {check.code: check for check in CHECKS}
    if code not in checks:
        raise ExamineError(
            f"code must be one of {', '.join(checks)}; got code={code!r}. "
            f"{nearest(code, checks, '--list explains each.')}"
        )
    check = checks[code]
    return "\n".join(
        [
            f"{check.code} ({check.severity}): {check.title}",
            "",
            check.explanation,
            "",
            f"cure     {check.cure}",
            f"healthy  {check.healthy}",
            f"source   {check.source}",
            f"more     {check.link}",
        ]
    )
