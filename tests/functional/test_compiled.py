"""Compiled and exported: one graph, the same numbers, and no compilation anew for every mask."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import manyheads as mh
from manyheads.functional import attention

LENGTH = 5
Q = torch.randn(2, 2, LENGTH, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def keep(seed: int = 0) -> Tensor:
    return torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(seed)) > 0.4


def ids(seed: int = 0) -> Tensor:
    return torch.randint(0, 3, (2, LENGTH), generator=torch.Generator().manual_seed(seed))


MASKS: dict[str, Callable[[int], mh.Mask | Tensor]] = {
    "window": lambda seed: ~(mh.Window(2) | mh.Global(0)),
    "user's rule": lambda seed: mh.Rule(even, "even"),
    "padding": lambda seed: mh.Causal() & mh.Padding(keep(seed)),
    "documents": lambda seed: mh.Causal() & mh.Documents(ids(seed)),
    "prefix": lambda seed: mh.Causal() | mh.Prefix(ids(seed)[:, 0]),
    "tags": lambda seed: mh.Window(2) | mh.Global(keep(seed)),
    "heads": lambda seed: mh.PerHead((mh.Padding(keep(seed)), mh.Causal())),
    "tensor": lambda seed: keep(seed)[0].expand(LENGTH, LENGTH),
}


def even(head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q - kv + head) % 2 == 0


def counted(function: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], Callable[[], int]]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter), lambda: counter.frame_count


@pytest.mark.parametrize("kind", MASKS)
def test_fresh_masks_of_one_kind_share_one_graph(kind: str) -> None:
    compiled, compilations = counted(lambda q, mask: attention(q, q, q, mask))
    for seed in range(3):
        mask = MASKS[kind](seed)
        right = attention(Q, Q, Q, mask, backend="reference")
        torch.testing.assert_close(compiled(Q, mask), right)
    assert compilations() == 1


def test_a_mask_written_inside_the_graph_is_as_good() -> None:
    def call(q: Tensor, keep: Tensor) -> Tensor:
        mask = mh.Causal() & (mh.Window(2) | mh.Global(0)) & mh.Padding(keep)
        return attention(q, q, q, mask)

    compiled, compilations = counted(call)
    for seed in range(3):
        torch.testing.assert_close(compiled(Q, keep(seed)), call(Q, keep(seed)))
    assert compilations() == 1


def test_windows_of_many_sizes_compile_a_few_times() -> None:
    compiled, compilations = counted(lambda q, mask: attention(q, q, q, mask))
    for size in (2, 3, 4, 1, 5, 2, 6, 9):
        mask = mh.Causal() & mh.Window(size)
        torch.testing.assert_close(compiled(Q, mask), attention(Q, Q, Q, mask))
    assert compilations() <= 4


def test_growing_lengths_compile_a_few_times() -> None:
    compiled, compilations = counted(lambda q, k: attention(q, k, k, mh.Causal()))
    for kv_len in range(4, 16):
        k = torch.randn(2, 2, kv_len, 8)
        torch.testing.assert_close(compiled(Q[:, :, :1], k), attention(Q[:, :, :1], k, k))
    assert compilations() <= 3


def test_positions_of_decoding_compile_a_few_times() -> None:
    k = torch.randn(2, 2, 20, 8)
    compiled, compilations = counted(
        lambda q, at: attention(q, k, k, mh.Causal(), q_pos=at, kv_pos=0)
    )
    for at in range(3, 15):
        right = attention(Q, k, k, mh.Causal(), q_pos=at, kv_pos=0)
        torch.testing.assert_close(compiled(Q, at), right)
    assert compilations() <= 3


def test_every_change_of_scores_compiles_with_its_gradients() -> None:
    def call(q: Tensor) -> Tensor:
        sinks, bias = q[0, :, 0, 0], q[:1, :1, :, :LENGTH]
        return attention(
            q, q, q, mh.Causal(), softcap=2.0, scale=0.3, sink_logits=sinks, bias=bias
        )  # fmt: skip

    compiled, _ = counted(call)
    q = Q.clone().requires_grad_()
    right = call(q)
    (expected,) = torch.autograd.grad(right.square().sum(), q)
    found = compiled(q)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), q)[0], expected)


def test_scales_that_differ_from_call_to_call_compile() -> None:
    """The second one is handed over as a symbol, whose value no function of math can be asked."""
    compiled, _ = counted(lambda q, scale: attention(q, q, q, scale=scale))
    for scale in (0.3, 0.5, 0.7):
        torch.testing.assert_close(compiled(Q, scale), attention(Q, Q, Q, scale=scale))


def test_weights_and_lse_compile() -> None:
    def both(q: Tensor) -> Tensor:
        weights = mh.attention_with_weights(q, q, q, mh.Causal())[1]
        return weights.sum(dim=-1) + mh.attention_with_lse(q, q, q, mh.Causal())[1]

    compiled, _ = counted(both)
    torch.testing.assert_close(compiled(Q), both(Q))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["window", "padding"])
def test_inductor_gives_the_same_numbers(kind: str) -> None:
    mask = MASKS[kind](0)
    compiled = torch.compile(lambda q: attention(q, q, q, mask), fullgraph=True)
    torch.testing.assert_close(compiled(Q), attention(Q, Q, Q, mask))


class Attends(torch.nn.Module):
    def __init__(self, mask: mh.Mask | None) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, q: Tensor, keep: Tensor) -> Tensor:
        padding = mh.Padding(keep)
        return attention(q, q, q, padding if self.mask is None else self.mask & padding)


@pytest.mark.parametrize(
    "mask", [None, mh.Causal(), mh.Causal() & mh.Window(3), mh.Window(2) | mh.Global(0)], ids=repr
)
def test_an_exported_program_serves_every_length(mask: mh.Mask | None) -> None:
    length = torch.export.Dim("length", min=2, max=512)
    model = Attends(mask)
    shapes = {"q": {2: length}, "keep": {1: length}}
    program = torch.export.export(model, (Q, keep()), dynamic_shapes=shapes).module()
    for size in (2, 9, 33):
        q, there = torch.randn(2, 2, size, 8), torch.rand(2, size) > 0.3
        torch.testing.assert_close(program(q, there), model(q, there))


def test_masks_made_inside_compiled_code_take_sizes_that_change() -> None:
    q = torch.randn(1, 2, 6, 8)

    def call(q: torch.Tensor, size: int) -> torch.Tensor:
        mask = mh.Causal() & (mh.Window(size) | mh.Prefix(size)) | mh.Window(size - 1)
        return mh.attention(q, q, q, mask)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for size in (3, 4, 5):
        with pytest.warns(mh.errors.MaskWarning):
            right = call(q, size)
        torch.testing.assert_close(compiled(q, size), right)


def test_grouped_heads_compile_for_any_shape() -> None:
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 9):
        q, k = torch.randn(2, 4, length, 8), torch.randn(2, 2, length, 8)
        expected = attention(q, k, k, mh.Causal())
        torch.testing.assert_close(compiled(q, k, k, mh.Causal()), expected)
