"""`explain` says which backend does a call, why, at what memory, and what would be faster."""

import pytest
import torch

import manyheads as mh

Q, K = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8)


def test_the_table_has_a_row_for_each_backend_and_marks_the_chosen_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = mh.explain(Q, K, K, mh.Causal())
    assert capsys.readouterr().out == f"{table}\n"
    head, *rows = str(table).splitlines()
    assert head.split() == ["backend", "can", "extra", "memory", "why"]
    assert [row.split()[0] for row in rows if row.startswith(">")] == [">"]
    assert {row.backend for row in table.rows} == set(mh.functional.BACKENDS)
    assert table.chosen == "fused" and table.cure is None


def test_what_stands_against_a_backend_is_said_with_its_cure() -> None:
    table = mh.explain(Q, K, K, softcap=5.0, dropout=0.1, verbose=False)
    row = next(row for row in table.rows if row.backend == "fused")
    assert not row.can and row.extra_bytes is None
    assert [refusal.cure for refusal in row.refusals] == ["leave softcap out", "set dropout=0"]
    assert "faster, for fused: leave softcap out, and set dropout=0" in str(table)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"bias": torch.zeros(3, 5, requires_grad=True)}, "detach the bias"),
    ],
)
def test_each_cure_cures(options: dict[str, torch.Tensor], cure: str) -> None:
    table = mh.explain(Q, K, K, **options, verbose=False)  # type: ignore[arg-type]
    assert table.chosen == "reference" and table.cure == f"for fused: {cure}"
    cured = {name: value.detach() for name, value in options.items() if "leave" not in cure}
    assert mh.explain(Q, K, K, **cured, verbose=False).chosen == "fused"  # type: ignore[arg-type]


def test_queries_before_every_key_are_noted() -> None:
    note = "q_len=5 exceeds kv_len=3: the first 2 queries stand before every key and see nobody"
    q, k = torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 3, 4)
    assert note in str(mh.explain(q, k, k, mh.Causal(), verbose=False))
    assert mh.explain(q, k, k, mh.Padding(torch.ones(1, 3).bool()), verbose=False).notes == ()
    table = mh.explain(q, k, k, mh.Causal(), q_pos=0, kv_pos=0, verbose=False)
    assert "see nobody" not in str(table)


def test_a_mask_that_is_written_out_is_noted() -> None:
    table = mh.explain(Q, K, K, mh.Causal() & mh.Window(2), verbose=False)
    assert "Window(2) is written out, q_len x kv_len numbers" in str(table)
    assert mh.explain(Q, Q, Q, mh.Causal(), verbose=False).notes == ()


def test_memory_grows_with_both_lengths_on_the_reference_alone() -> None:
    def extra(length: int) -> dict[str, int | None]:
        q = torch.empty(1, 8, length, 64, device="meta")
        table = mh.explain(q, q, q, mh.Causal(), verbose=False)
        return {row.backend: row.extra_bytes for row in table.rows}

    small, large = extra(1024), extra(4096)
    assert large["reference"] == 16 * small["reference"] == 3 * 4 * 8 * 4096**2  # type: ignore[operator]
    assert large["fused"] == small["fused"] == 0
