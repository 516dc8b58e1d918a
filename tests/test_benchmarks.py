"""The benchmarks' arithmetic holds, and each of them can be called; nothing here is timed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks import (
    BENCHMARKS,
    approximations,
    browser,
    cliffs,
    generate,
    keep,
    libraries,
    neighbours,
    packed,
    pages,
    patterns,
    viewers,
    window,
)
from benchmarks.__main__ import main
from benchmarks.benchmark import Goal, Plan, every
from benchmarks.machine import describe
from benchmarks.report import earlier, join, table, write
from benchmarks.rounds import best_of, interleave, ratio

import manyheads as mh


@pytest.fixture(autouse=True)
def _torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    # A peer imports nnsight, which replaces this for the rest of the process.
    monkeypatch.setattr(torch.Tensor, "backward", torch.Tensor.backward)


def test_a_round_times_every_contender_once_in_an_order_that_changes() -> None:
    called: list[str] = []
    now: Iterator[int] = iter(range(1000))
    times = interleave(
        {name: lambda name=name: called.append(name) for name in "abc"},
        6,
        warmups=1,
        clock=lambda: float(next(now)),
    )
    rounds = ["".join(called[i : i + 3]) for i in range(0, len(called), 3)]
    assert len(rounds) == 7
    assert {"".join(sorted(order)) for order in rounds} == {"abc"}
    assert len(set(rounds)) > 1
    assert times == {name: [1.0] * 6 for name in "abc"}


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    # The third round met a busy machine, which slowed both alike.
    found = ratio([1.0, 2.0, 90.0, 1.2, 0.9], [2.0, 4.0, 180.0, 2.0, 2.0])
    assert found.median == 0.5
    assert found.low <= 0.5 <= found.high
    assert (found.low, found.high, found.rounds) == (0.45, 0.6, 5)


def test_a_ratio_that_never_changes_has_no_width() -> None:
    found = ratio([3.0] * 7, [2.0] * 7)
    assert (found.low, found.median, found.high) == (1.5, 1.5, 1.5)


def test_the_better_peer_has_the_lower_median() -> None:
    assert best_of(["a", "b"], {"a": [1.0, 9.0, 9.0], "b": [2.0, 2.0, 50.0]}) == "b"


def test_a_goal_names_the_worst_cell_and_hides_no_miss() -> None:
    def row(cell: str, high: float) -> dict:
        return {"cell": cell, "r": {"median": 1.0, "low": 0.9, "high": high}}

    goal = every("at most 1.05", [row("a", 1.04), row("b", 1.2)], "r", lambda row: 1.05)
    assert not goal.kept
    assert goal.numbers == "1 of 2 cells; worst 1.00 (0.90-1.20) at b"
    assert goal.verdict == "**not met**"
    assert every("x", [], "r", lambda row: 1.0) == Goal("x", None, "")


def test_results_grow_by_rows_and_forget_another_machine(tmp_path: Path) -> None:
    benchmark, machine = BENCHMARKS["call"], describe()
    row = {"call": "no mask", "added us, least": 12.0, "added CPU us, median": 13.0}
    rows = join(benchmark, [{**row, "added us, least": 30.0}], row)
    assert rows == [row]
    write(benchmark, rows, machine, tmp_path)
    assert earlier(benchmark, machine, tmp_path) == [row]
    assert earlier(benchmark, {**machine, "threads": 99}, tmp_path) == []
    assert json.loads((tmp_path / "call.json").read_text())["goals"][0]["kept"] is True
    assert "12.0 of wall time" in (tmp_path / "call.md").read_text()


def test_a_table_shows_intervals_and_what_was_not_measured() -> None:
    interval = {"median": 0.5, "low": 0.456, "high": 0.6, "rounds": 7}
    lines = table([{"cell": "a", "ratio": interval}, {"cell": "b", "ratio": None}])
    assert lines[2:] == ["| a | 0.50 (0.46-0.60) |", "| b | - |"]


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines()] == list(BENCHMARKS)


def test_an_unknown_name_is_refused_with_those_that_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["speed"])
    assert "NAME must be one of call, importing" in capsys.readouterr().err


def test_a_quick_run_yields_rows_goals_and_a_picture() -> None:
    benchmark = BENCHMARKS["call"]
    rows = list(benchmark.measure(Plan("quick", rounds=2)))
    assert [row["call"] for row in rows][:2] == ["no mask", "Causal()"]
    assert benchmark.judge(rows)[0].kept in (True, False)
    assert benchmark.draw(rows).axes


def test_the_growth_of_a_window_is_read_off_its_rows() -> None:
    def row(length: int, ms: float, **more: object) -> dict[str, object]:
        return {"length": length, "pass": "forward", "ours ms": ms, "ours MiB": 80.0, **more}

    assert window.exponent([4, 8, 16], [3.0, 6.0, 12.0]) == pytest.approx(1.0)
    fast = {"median": 30.0, "low": 27.0, "high": 33.0}
    rows = [row(4096, 50.0), row(16384, 200.0, **{"dense / ours": fast}), row(32768, 400.0)]
    assert [goal.kept for goal in window.judge(rows)] == [True, True, True]
    slow = [row(4096, 50.0), row(32768, 3200.0)]
    assert [goal.kept for goal in window.judge(slow)] == [False, None, True]
    assert [goal.kept for goal in window.judge([])] == [None, None, None]


def test_the_speed_of_writing_is_judged_by_its_lower_end() -> None:
    def row(dtype: str, batch: int, low: float) -> dict[str, object]:
        return {
            "cell": f"llama, {dtype}, batch {batch}",
            "batch": batch,
            "better / ours": {"median": 2, "low": low, "high": 3},
            "reading weights / ours": 0.4 * low,
        }

    rows = [row("fp32", 1, 1.3), row("fp32", 8, 1.5), row("bf16", 1, 2.0)]
    verdicts = [goal.kept for goal in generate.judge(rows)]
    assert verdicts == [True, False, True, None, False, None]  # 0.52 of the 0.7 is too little


def test_a_window_is_flat_in_time_and_memory_or_not() -> None:
    flat = [{"cell": "window", "length": n, "ms/token": 2.0, "MiB": 3.0} for n in (2048, 4096)]
    assert [goal.kept for goal in keep.judge(flat)] == [True, True, None, None]
    flat[1]["MiB"] = 6.0
    rows = [*flat, {"cell": "int8, 8192", "share of bf16": 0.6}]
    assert [goal.kept for goal in keep.judge(rows)] == [True, False, False, None]


def test_ours_and_theirs_write_one_text() -> None:
    ways = generate.contenders(generate.llama(Plan("quick"), generate.DTYPES["fp32"]), 2, 6)
    texts = [way().tolist() for way in ways.values()]
    assert texts[0] == texts[1] == texts[2]


def not_installed(length: int, size: int) -> libraries.Attend:
    raise ImportError


@pytest.mark.filterwarnings("ignore")  # of other libraries
@pytest.mark.parametrize(
    "name",
    [
        "packed",
        "patterns",
        "neighbours",
        "approximations",
        "monitor",
        "statistics",
        "watching",
    ],
)
def test_a_trial_of_each_comparison_yields_rows_goals_and_a_picture(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To compile it takes a third of a minute.
    monkeypatch.setitem(neighbours.PEERS, "flex", not_installed)
    benchmark = BENCHMARKS[name]
    rows = list(benchmark.measure(Plan("quick", rounds=1)))
    assert rows and all(row[benchmark.key[0]] for row in rows)
    assert benchmark.draw(rows).axes
    assert all(goal.kept is None for goal in benchmark.judge([]))
    assert len(benchmark.judge(rows)) == len(benchmark.judge([]))


def test_what_is_not_installed_is_noted_and_costs_the_others_nothing() -> None:
    def doubled(length: int, size: int) -> libraries.Attend:
        return lambda q, k, v: 2 * q

    asked = {"there": doubled, "gone": not_installed}
    ready = libraries.made(asked, 8, 4)
    assert list(ready) == ["there"]
    assert libraries.note(asked, ready) == "not installed: gone"
    assert libraries.note(["there"], ready) is None


@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_the_peers_compute_what_ours_does() -> None:
    q, k, v = torch.randn(3, 1, 8, 512, 64)
    with torch.no_grad():
        for peer, size, right in (
            (libraries.local_attention, 64, mh.attention(q, k, v, mh.Causal() & mh.Window(65))),
            (libraries.longformer, 64, mh.attention(q, k, v, mh.Window(33))),
            (libraries.performer_sums, 0, mh.linear_attention(q, k, v, mh.Causal())),
        ):
            attend = libraries.made({"peer": peer}, 512, size).get("peer")
            if attend is None:
                pytest.skip(
                    "a peer is not installed; pip install it as benchmarks/libraries.py says"
                )
            torch.testing.assert_close(attend(q, k, v), right, rtol=1e-4, atol=1e-4)


def test_goals_of_comparisons_are_read_off_their_rows() -> None:
    def share(median: float) -> dict[str, float]:
        return {"median": median, "low": median * 0.9, "high": median * 1.1}

    row = {"cell": "16384 forward", "length": 16384, "pass": "forward"}
    found = neighbours.judge([{**row, "flex / ours": share(2.0), "longformer / ours": share(2.0)}])
    assert [goal.kept for goal in found] == [True, None, False, None, None]
    cells = [{"cell": "a", "padded / ours": share(3.0)}, {"cell": "b", "padded / ours": share(1.8)}]
    (goal,) = packed.judge(cells)
    assert goal.kept is False and goal.numbers == "1 of 2 cells; least 1.62 at b"
    sparse = [{"pattern": "dyadic", "length": 16384, "dense / ours": share(9.0)}]
    assert patterns.judge(sparse)[0].kept is True


def test_the_break_even_lies_on_the_line_between_two_lengths() -> None:
    def row(length: int, share: float) -> dict[str, object]:
        return {"length": length, "lsh / exact": {"median": share}}

    rows = [row(1024, 4.0), row(2048, 2.0), row(8192, 0.5)]
    assert approximations.break_even(rows, "lsh") == pytest.approx(4096.0)
    assert approximations.break_even(rows[:2], "lsh") is None
    assert approximations.break_even(rows[2:], "lsh") == 8192.0


def test_the_cliffs_judge_what_was_promised_and_no_other_cell() -> None:
    def row(kind: str, high: float, **more: object) -> dict[str, object]:
        found = {"median": high, "low": high, "high": high}
        return {"cell": kind, "kind": kind, "ours / torch": found, "memory": 0.1, **more}

    rows = [row("dropout 0.1", 0.5), row("trainable bias", 0.9), row("head_dim 33", 1.2)]
    assert [goal.kept for goal in cliffs.judge(rows)] == [True, True, None, None]
    rows.append(row("trainable bias", 1.1, memory=0.3))
    assert [goal.kept for goal in cliffs.judge(rows)] == [False, False, None, None]
    packed = {"median": 0.8, "low": 0.8, "high": 0.8}
    decoding = {"cell": "8 keys", "kind": "grouped decoding", "ours / enable_gqa": packed}
    assert [goal.kept for goal in cliffs.judge([decoding])] == [None, None, True, None]
    assert cliffs.draw([*rows, decoding]).axes


def test_a_page_is_made_in_a_process_of_its_own(tmp_path: Path) -> None:
    made = viewers.make("ours", 16, tmp_path / "heads.html", 300.0)
    assert isinstance(made, dict), made
    assert made["seconds"] > 0 and made["CPU seconds"] > 0
    assert "<html" in (tmp_path / "heads.html").read_text()


def test_pages_say_what_is_missing_and_spare_what_would_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(viewer: str, length: int, path: Path, timeout: float) -> dict[str, float] | str:
        if viewer == "bertviz":
            return "not installed: bertviz"
        path.write_text("heads")
        return {"seconds": 1.0, "CPU seconds": 1.0, "bytes": 2e6 * length}

    monkeypatch.setattr(pages, "make", make)
    monkeypatch.setattr(browser, "missing", lambda: "chromium")
    rows = {row["cell"]: row for row in pages.measure(Plan())}
    assert rows["bertviz 512"]["note"] == "not installed: bertviz"
    assert rows["attnview 2048"]["note"] == "would hold about 16 GB"
    assert rows["ours 32768"]["note"] == "not opened: chromium is not installed"
    assert pages.draw(list(rows.values())).axes


def test_a_page_is_judged_by_its_bytes_and_by_how_it_opens() -> None:
    def row(**told: object) -> dict[str, object]:
        page = {"viewer": "ours", "length": 512, "MB": 4.0}
        return {**page, "offline": "opens", "opens in s": 1.0, **told}

    long = row(length=pages.LONGEST)
    assert [goal.kept for goal in pages.judge([long, row(viewer="x", MB=700.0)])] == [True, True]
    assert [goal.kept for goal in pages.judge([row()])] == [None, True]  # not long enough to say
    assert [goal.kept for goal in pages.judge([row(MB=5.5)])] == [False, True]
    assert [goal.kept for goal in pages.judge([row(offline="blank")])] == [None, False]
    assert [goal.kept for goal in pages.judge([])] == [None, None]
