"""FlexAttention: our plan as its block mask, our rules and biases as its functions of one pair."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs
from torch.nn.attention.flex_attention import create_block_mask, create_mask

import manyheads as mh
from manyheads.errors import BackendError
from manyheads.functional import flex
from manyheads.functional.block_mask import BLOCK, block_mask, pair_function, seen_blocks
from manyheads.functional.call import prepare
from manyheads.functional.flex import FLEX
from manyheads.laws.backend import LAWS, Trial
from manyheads.laws.calls import USUAL, BackendCase, draw
from manyheads.laws.law import hold
from manyheads.masks import Bound, bind

KEEP = torch.rand(2, 300, generator=torch.Generator().manual_seed(0)) > 0.4
IDS = (torch.arange(300) // 70).expand(2, -1)
EACH = mh.PerHead((mh.Causal(), mh.Window(9), ~mh.Causal(), mh.Causal() & mh.Dyadic()))
MASKS = {
    "causal": mh.Causal(),
    "window": mh.Causal() & mh.Window(140),
    "bigbird": mh.Window(40) | mh.Global((3, 299)) | mh.RandomBlocks(1, block=32, length=300),
    "padding": mh.Causal() & mh.Padding(KEEP),
    "documents": mh.Documents(IDS) & mh.Padding(KEEP),
    "each its own": EACH & mh.Padding(KEEP),
    "rule": mh.Rule(lambda head, q, kv: (q + head) % 3 != kv % 3, "shifted by head"),
    "dense": mh.Dense(torch.rand(2, 4, 300, 300, generator=torch.Generator().manual_seed(1)) > 0.5),
}


@pytest.fixture
def written_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FlexAttention as torch writes it out where nothing compiles: an oracle for our functions."""

    def program(recipe: flex.Recipe) -> tuple[str, Callable[..., object]]:
        name = f"test {hash(recipe)}"
        monkeypatch.setitem(flex._RECIPES, name, recipe)
        return name, flex._attend

    monkeypatch.setattr(flex, "_program", program)
    monkeypatch.setattr(flex, "_device_refusals", lambda call: iter(()))
    monkeypatch.setattr(theirs, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(theirs, "_warn_once", lambda *warning, **about: None)
    monkeypatch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    yield


def settled(name: str) -> Bound:
    return bind(MASKS[name], 2, 300, 300)


@pytest.mark.parametrize("name", MASKS)
def test_a_pair_is_seen_as_the_mask_says(name: str) -> None:
    bound = settled(name)
    sees = pair_function(bound, lambda: bound.rule)
    found = create_mask(sees, 2, 4, 300, 300, device="cpu")
    assert torch.equal(found, bound.dense(4).expand(2, 4, 300, 300))


@pytest.mark.parametrize("name", MASKS)
def test_no_block_that_is_seen_is_left_out_and_none_is_taken_as_whole_that_is_not(
    name: str,
) -> None:
    bound = settled(name)
    some, every = seen_blocks(bound, 2, 4)
    edge = -300 % BLOCK
    dense = torch.nn.functional.pad(bound.dense(4).expand(2, 4, 300, 300), (0, edge, 0, edge))
    blocks = dense.unflatten(2, (-1, BLOCK)).unflatten(4, (-1, BLOCK))
    assert ((some | every) | ~blocks.any(dim=(3, 5))).all()
    assert (~every | blocks.all(dim=(3, 5))).all()
    assert not (some & every).any()


def test_a_plan_gives_the_blocks_that_torch_finds_by_asking_about_every_pair() -> None:
    bound = bind(mh.Causal() & mh.Window(200), 1, 640, 640)
    sees = pair_function(bound, lambda: bound.rule)
    ours = block_mask(bound, 1, 2, sees)
    right = create_block_mask(sees, 1, 1, 640, 640, device="cpu")
    for name in ("kv", "full_kv", "q", "full_q"):
        counts, found = getattr(ours, f"{name}_num_blocks"), getattr(ours, f"{name}_indices")
        assert torch.equal(counts, getattr(right, f"{name}_num_blocks"))
        used = torch.arange(found.shape[-1]) < counts[..., None]
        assert torch.equal(found[used], getattr(right, f"{name}_indices")[used])
    assert torch.equal(ours.to_dense(), right.to_dense())


def hold_one(name: str) -> None:
    law = next(law for law in LAWS if law.__name__ == name)
    hold((law,), Trial(FLEX, BackendCase(), thorough=False))


@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize("name", ["grouped_heads", "odd_widths", "masks_over_several_blocks"])
def test_written_out_it_keeps_the_laws(name: str) -> None:
    hold_one(name)


@pytest.mark.long
@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize(
    "name",
    [
        "odd_lengths",
        "every_mask",
        "absent_tokens",
        "given_positions",
        "every_bias_that_reads_positions",
        "nothing_at_all",
        "leaves_its_arguments_alone",
    ],
)
def test_written_out_it_keeps_the_other_laws(name: str) -> None:
    hold_one(name)


# torch hides this warning of its tracing where warnings are not errors.
TRACED = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.long
@TRACED
@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize(
    "name", ["changes_over_several_blocks", "every_bias", "every_score_change"]
)
def test_written_out_and_traced_it_keeps_the_laws_of_what_it_reads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Gradients of what its functions read need torch's own tracing.
    monkeypatch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    hold_one(name)


@TRACED
@pytest.mark.usefixtures("written_out")
def test_gradients_reach_what_is_added_and_the_log_sum_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    trial = Trial(FLEX, BackendCase(), thorough=False)
    sinks = (("sink_logits", torch.linspace(-1.0, 1.0, 4)), ("softcap", 2.0))
    trial.agree(mask="causal", bias="pairs", options=sinks, kv_len=9)
    trial.agree(mask="none", bias="queries", hidden=True)
    bias = mh.T5Bias(4, num_buckets=8, max_distance=16).double()
    q, k, v = torch.randn(3, 1, 4, 40, 16, dtype=torch.float64)
    weight, found = torch.randn(1, 4, 40, 16, dtype=torch.float64), {}
    for backend in ("reference", "flex"):
        output = mh.attention(q, k, v, mh.Causal(), bias=bias, backend=backend)
        found[backend] = torch.autograd.grad((output * weight).sum(), bias.table)[0]
    torch.testing.assert_close(found["flex"], found["reference"], rtol=1e-10, atol=1e-10)


@pytest.mark.long
def test_compiled_for_the_cpu_it_gives_the_answer_of_the_reference() -> None:
    draw = torch.Generator().manual_seed(0)

    def random(heads: int, length: int, width: int) -> Tensor:
        return torch.randn(2, heads, length, width, generator=draw)

    options = {"softcap": 5.0, "bias": mh.ALiBi(4), "scale": 0.3}
    for q_len, kv_len in ((200, 300), (300, 300), (170, 300)):  # the third is not compiled anew
        q, k, v = random(4, q_len, 8), random(2, kv_len, 8), random(2, kv_len, 24)
        with torch.no_grad():
            found = mh.attention(q, k, v, MASKS["each its own"], backend="flex", **options)
        right = mh.attention(q, k, v, MASKS["each its own"], backend="reference", **options)
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "why", "cure"),
    [
        ({"dropout": 0.1}, "no dropout", "set dropout=0"),
        ({"sink_logits": torch.zeros(4)}, "no log-sum-exp on the CPU", "leave lse and sink"),
        ({"grad": True}, "no gradient on the CPU", "under torch.no_grad"),
        ({"dtype": torch.float64}, "no kernel for float64", "convert q, k and v to float32"),
        ({"device": "meta"}, "on the CPU and CUDA, not on meta", "make them on CUDA"),
    ],
)
def test_what_it_cannot_do_is_refused_with_its_cure(
    options: dict[str, object], why: str, cure: str
) -> None:
    case = BackendCase(grad=False, dtype=torch.float32)
    named = {"grad", "dtype", "device"} & set(options)
    case = dataclasses.replace(case, **{name: options.pop(name) for name in named})  # type: ignore[arg-type]
    if case.device == "meta":
        q = torch.zeros(1, 4, 4, 8, device="meta")
        inputs = {"q": q, "k": q, "v": q}
    else:
        inputs = draw(case).tensors
    with pytest.raises(BackendError, match=f"{why}.*{cure}"):
        mh.attention(**inputs, **options, backend="flex")  # type: ignore[arg-type]


def test_auto_never_takes_it_on_the_cpu_and_explain_says_so() -> None:
    q = torch.zeros(1, 2, 1024, 16)
    table = mh.explain(q, q, q, mh.Window(4), softcap=3.0, verbose=False)
    row = next(row for row in table.rows if row.backend == "flex")
    assert row.can and not row.chosen and table.chosen == "chunked"
    assert row.declines == "it gains on cuda alone, and must be named elsewhere"
    assert table.cure is None or "flex" not in table.cure


def test_where_auto_may_take_it_it_gains_by_few_pairs_or_by_a_change_of_scores() -> None:
    q = torch.zeros(1, 2, 1024, 16)

    def declines(mask: mh.Mask | None, **options: object) -> str | None:
        call = prepare(**(USUAL | {"q": q, "k": q, "v": q, "mask": mask} | options))  # type: ignore[arg-type]
        return FLEX.declines(call)

    assert declines(mh.Causal() & mh.Window(64)) is None
    assert declines(mh.Causal(), softcap=3.0) is None
    assert declines(mh.Window(200), bias=mh.T5Bias(2)) is None
    assert "nothing written out" in str(declines(mh.Causal()))
    assert "nothing written out" in str(declines(None))
    assert "of the blocks are seen" in str(declines(mh.Window(900)))
    tagged = mh.Window(3) | mh.Global(torch.zeros(1, 1024, dtype=torch.bool))
    assert "read from the device" in str(declines(tagged))
