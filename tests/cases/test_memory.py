"""Memory grows with the length, not with its square, where nobody asked for weights."""

from pathlib import Path

import pytest
import torch

import manyheads as mh
from manyheads.masks import bind

LENGTH, HEADS = 16384, 12
GIB = 2**30


def test_a_padding_mask_stays_a_row_of_the_keys() -> None:
    """MEM-01: 16 kB where a copy for each head and query would be 12 GiB."""
    mask = mh.Padding(lengths=torch.tensor([LENGTH - 100]))
    bound = bind(mask, 1, LENGTH, LENGTH)
    written = bound.dense(HEADS)
    assert written.shape == (1, 1, 1, LENGTH)
    assert written.untyped_storage().nbytes() == LENGTH


@pytest.mark.parametrize(
    "mask",
    [None, mh.Causal(), mh.Padding(lengths=torch.tensor([LENGTH - 100]))],
    ids=["nothing", "causal", "padding"],
)
def test_explain_tells_the_memory_before_it_is_spent(mask: mh.Mask | None) -> None:
    q = torch.empty(1, HEADS, LENGTH, 64, device="meta")
    told = mh.explain(q, q, q, mask, verbose=False)
    assert told.chosen == "fused"
    by_name = {row.backend: row.extra_bytes for row in told.rows}
    assert by_name["fused"] < GIB
    assert by_name["reference"] >= 12 * GIB


def peak_memory() -> int:
    """Most bytes that were resident at once since the last `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc"
)
@pytest.mark.parametrize(
    "mask",
    [mh.Padding(lengths=torch.tensor([LENGTH - 100])), mh.Causal()],
    ids=["padding", "causal"],
)
def test_the_measured_peak_is_far_below_one_matrix_of_scores(mask: mh.Mask) -> None:
    """MEM-01 with one head and narrow features, so that it is quick: its scores would be 1 GiB."""
    q, k, v = torch.randn(3, 1, 1, LENGTH, 8).unbind()
    mh.attention(q[:, :, :8], k[:, :, :8], v[:, :, :8])
    forget_peak()
    before = peak_memory()
    mh.attention(q, k, v, mask)
    assert peak_memory() - before < GIB // 16
