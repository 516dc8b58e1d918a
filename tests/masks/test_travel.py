"""Masks travel: through data loaders, processes, devices, trainers and caches of rules."""

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader

import manyheads as mh
from manyheads.masks import bind


def collate(rows: list[int]) -> dict[str, object]:
    lengths = torch.tensor(rows)
    ids = torch.arange(6).expand(len(rows), 6) // 3
    return {"mask": mh.Causal() & mh.Padding(lengths=lengths) & mh.Documents(ids), "rows": rows}


def test_masks_come_whole_from_the_workers_of_a_data_loader() -> None:
    loader = DataLoader([1, 6, 3, 4], batch_size=2, num_workers=1, collate_fn=collate)
    for batch in loader:
        right = collate(batch["rows"])["mask"]
        assert isinstance(right, mh.Mask)
        assert torch.equal(batch["mask"].dense(6, batch=2), right.dense(6, batch=2))


def test_masks_follow_a_batch_of_lightning() -> None:
    apply = pytest.importorskip(
        "lightning.fabric.utilities.apply_func", reason="ends where lightning is installed"
    )
    moved = apply.move_data_to_device(collate([2, 5]), torch.device("meta"))
    assert moved["rows"] == [2, 5]
    assert [tensor.device.type for tensor in moved["mask"].tensors()] == ["meta", "meta"]


def test_to_moves_tensors_and_leaves_their_dtypes() -> None:
    mask = mh.Padding(torch.ones(1, 2).bool()) & mh.Documents(torch.ones(1, 2).long())
    for moved in (mask.to(torch.float16), mask.to("cpu", torch.bfloat16), mask.to(torch.ones(1))):
        assert [tensor.dtype for tensor in moved.tensors()] == [torch.bool, torch.int64]
    assert mask.to("meta", non_blocking=True).tensors()[0].is_meta


def test_a_mask_with_tensors_equals_itself_alone() -> None:
    mask = mh.Causal() & mh.Padding(torch.ones(1, 2).bool())
    assert mask == mask
    assert mask != copy.deepcopy(mask)
    assert len({mask, mask, copy.deepcopy(mask)}) == 2


def test_a_rule_equals_what_says_the_same() -> None:
    same = pickle.loads(pickle.dumps(mh.Causal() & mh.Window(before=3, after=0)))
    assert mh.Causal() & mh.Window(before=3, after=0) == same
    assert len({same, mh.Causal() & mh.Window(before=3, after=0), mh.Causal()}) == 2
    assert mh.Global((1, 0)) == mh.Global([0, 1, 1])
    assert mh.Causal() != mh.Window(2) and mh.Causal() & mh.Window(2) != mh.Window(2) & mh.Causal()


@pytest.fixture
def blind() -> Iterator[tuple[Tensor, Tensor, mh.Mask]]:
    # A window of its own, so that no other test has settled this rule before.
    yield torch.randn(1, 2, 6, 8), torch.randn(1, 2, 4, 8), mh.Causal() & mh.Window(77)


def test_a_rule_settled_under_inference_mode_trains_later(
    blind: tuple[Tensor, Tensor, mh.Mask],
) -> None:
    q, k, mask = blind
    with torch.inference_mode():
        mh.attention(q, k, k, mask)
    q.requires_grad_()
    mh.attention(q, k, k, mask).sum().backward()
    assert q.grad is not None


def test_a_rule_settled_for_fakes_serves_real_tensors_later(
    blind: tuple[Tensor, Tensor, mh.Mask],
) -> None:
    q, k, mask = blind
    with FakeTensorMode() as fakes:
        mh.attention(fakes.from_tensor(q), fakes.from_tensor(k), fakes.from_tensor(k), mask)
    torch.testing.assert_close(
        mh.attention(q, k, k, mask), mh.attention(q, k, k, mask, backend="reference")
    )


def test_a_mask_settled_once_serves_many_calls_and_refuses_others() -> None:
    q = torch.randn(2, 2, 4, 8)
    mask = mh.Causal() & mh.Padding(lengths=torch.tensor([2, 4]))
    bound = bind(mask, 2, 4, 4)
    for _ in range(2):
        torch.testing.assert_close(mh.attention(q, q, q, bound), mh.attention(q, q, q, mask))
    with pytest.raises(mh.masks.base.MaskError, match="must fit its call; got one for 4 queries"):
        mh.attention(q[:, :, :3], q, q, bound)
    with pytest.raises(mh.masks.base.MaskError, match="must come alone; got positions beside it"):
        mh.attention(q, q, q, bound, q_pos=0, kv_pos=0)


def test_threads_may_settle_masks_at_once() -> None:
    def settle_many(first: int) -> None:
        for size in range(first, first + 1000):  # many more than are kept
            bind(mh.Window(size % 97 + 1), 1, 3, 3)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(settle_many, range(3))) == [None, None, None]
    finally:
        sys.setswitchinterval(before)


def test_a_function_of_the_user_is_asked_in_every_call() -> None:
    step = {"of": 2}
    rule = mh.Causal() & mh.Rule(lambda head, q, kv: (q - kv) % step["of"] == 0, "steps")
    q = torch.randn(1, 1, 4, 8)
    for step["of"] in (2, 3):
        right = mh.attention(q, q, q, rule.dense(4).clone(), backend="reference")
        torch.testing.assert_close(mh.attention(q, q, q, rule), right)


def test_a_function_may_be_an_object_without_a_hash() -> None:
    class Every(dict[str, int]):
        def __call__(self, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return (q - kv) % self["step"] == 0

    q, rule = torch.randn(1, 1, 4, 8), mh.Rule(Every(step=2), "every second")
    right = mh.attention(q, q, q, (torch.arange(4) - torch.arange(4)[:, None]) % 2 == 0)
    torch.testing.assert_close(mh.attention(q, q, q, rule), right)


def test_fakes_are_never_asked_for_their_values() -> None:
    with FakeTensorMode():
        q, lengths = torch.randn(2, 4, 5, 8), torch.tensor([3, 5])
        assert mh.attention(q, q, q, mh.Causal() & mh.Padding(lengths=lengths)).shape == q.shape
        model = mh.Transformer(mh.TransformerConfig(9, 9, d_model=8, num_heads=2, d_hidden=8))
        ids = torch.ones(2, 3, dtype=torch.long)
        assert model(ids, ids).shape == (2, 3, 9)


def test_the_opposite_of_a_mask_can_be_made_inside_of_compiled_code() -> None:
    """torch's tracer knows ``&`` and ``|`` of our masks and not ``~``, at which a graph breaks."""

    def operator(q: Tensor, window: mh.Mask) -> Tensor:
        return mh.attention(q, q, q, ~window)

    def method(q: Tensor, window: mh.Mask) -> Tensor:
        return mh.attention(q, q, q, window.__invert__())

    q, window = torch.randn(1, 2, 6, 8), mh.Window(2)
    right = mh.attention(q, q, q, ~window)
    for function in (operator, method):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="aot_eager", fullgraph=function is method)
        torch.testing.assert_close(compiled(q, window), right)


DRAW = torch.Generator().manual_seed(0)
MAPPED: dict[str, tuple[Callable[[Tensor], mh.Mask], Tensor]] = {
    "padding": (lambda keep: mh.Padding(keep[None]), torch.rand(4, 9, generator=DRAW) > 0.4),
    "opposite": (
        lambda keep: mh.Causal() & ~mh.Padding(keep[None]),
        torch.rand(4, 9, generator=DRAW) > 0.4,
    ),
    "lengths": (lambda n: mh.Padding(lengths=n[None]), torch.tensor([0, 3, 8, 9])),
    "documents": (
        lambda ids: mh.Documents(ids[None]),
        torch.randint(0, 3, (4, 9), generator=DRAW),
    ),
    "prefix": (lambda n: mh.Causal() | mh.Prefix(n[None]), torch.tensor([0, 1, 4, 9])),
    "tags": (
        lambda tags: mh.Window(2) | mh.Global(tags[None]),
        torch.rand(4, 9, generator=DRAW) > 0.7,
    ),
    "dense": (
        lambda pairs: mh.Dense(pairs[None, None]),
        torch.rand(4, 9, 9, generator=DRAW) > 0.4,
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", MAPPED)
def test_a_mask_of_each_sample_can_be_mapped(name: str) -> None:
    make, facts = MAPPED[name]
    q = torch.randn(4, 2, 9, 8)

    def loss(q: Tensor, fact: Tensor) -> Tensor:
        return mh.attention(q[None], q[None], q[None], make(fact)).square().sum()

    mapped = torch.func.vmap(torch.func.grad(loss))(q, facts)
    alone = torch.stack([torch.func.grad(loss)(*sample) for sample in zip(q, facts, strict=True)])
    torch.testing.assert_close(mapped, alone)
