"""`explain` says which backend does a call, why, at what memory, and what would be faster."""

import pytest
import torch
from tests.functional.largest import Largest

import manyheads as mh
from manyheads.functional.lowering import lower, written_shape

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


LONG = torch.zeros(1, 2, 4096, 8)
BIG_BIRD = mh.Window(65) | mh.Global(0) | mh.RandomBlocks(2, 64, length=4096)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": BIG_BIRD},
        {"mask": BIG_BIRD, "bias": mh.T5Bias(2)},
        {"mask": BIG_BIRD, "softcap": 5.0},
        {"bias": mh.ALiBi(2)},
    ],
    ids=str,
)
def test_nothing_is_written_out_to_tell_what_would_be(options: dict[str, object]) -> None:
    with Largest() as most:
        table = mh.explain(LONG, LONG, LONG, **options, verbose=False)  # type: ignore[arg-type]
    assert most.numel <= 2**21 < 4096**2 / 4
    told = {row.backend: row.extra_bytes for row in table.rows}
    assert told["fused"] is None or told["fused"] > 4 * 4096**2


CORNERS = {
    "causal": {"mask": mh.Causal()},
    "a window": {"mask": mh.Causal() & mh.Window(3)},
    "padding": {"mask": mh.Padding(lengths=torch.tensor([2, 5]))},
    "causal and padding": {"mask": mh.Causal() & mh.Padding(lengths=torch.tensor([2, 5]))},
    "a mask a head": {"mask": mh.RandomBlocks(1, 2, length=5)},
    "a bias": {"bias": torch.zeros(5, 5), "mask": mh.Causal()},
    "a row of bias": {"bias": torch.zeros(1, 4, 1, 5), "mask": mh.Causal()},
    "a row of bias beside padding": {
        "bias": torch.zeros(1, 4, 1, 5), "mask": mh.Padding(lengths=torch.tensor([2, 5]))
    },
    "a bias of positions": {"bias": mh.T5Bias(4)},
    "a bias of positions and a mask": {"bias": mh.T5Bias(4), "mask": mh.Window(2)},
    "a bias that is converted": {"bias": torch.zeros(1, 1, 5, 5, dtype=torch.float64)},
}  # fmt: skip


@pytest.mark.parametrize("options", CORNERS.values(), ids=CORNERS)
@pytest.mark.parametrize("q_len", [1, 3, 5])
def test_a_corner_of_the_pairs_tells_what_is_written(
    options: dict[str, torch.Tensor], q_len: int
) -> None:
    given = dict(options)
    if isinstance(bias := given.get("bias"), torch.Tensor) and bias.shape[-2] > 1:
        given["bias"] = bias[..., :q_len, :]
    q, k = torch.zeros(2, 4, q_len, 8), torch.zeros(2, 2, 5, 8)
    call = mh.statistics(q, k, k, **given).call._replace(need="output")
    written, _ = lower(call)
    given_or_none = written is None or written is call.bias
    assert written_shape(call) == (None if given_or_none else tuple(written.shape))
