"""Every wrong argument of `attention` is refused before any work, by name and with its cure."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import (
    BackendError,
    DeviceError,
    DTypeError,
    ManyheadsError,
    OptionError,
    ShapeError,
)

Q, K = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8)
SENTENCE = r"(?s)^[^;]+ must [^;]+; got .+\. [A-Z].+[.)]$"


def call(**changes: object) -> object:
    arguments = {"q": Q, "k": K, "v": K, **changes}
    return mh.attention(**arguments)  # type: ignore[arg-type]


MISTAKES: list[tuple[dict[str, object], type[ManyheadsError], str]] = [
    ({"q": [1.0]}, DTypeError, "q must be a torch.Tensor; got q=list"),
    ({"q": Q[0]}, ShapeError, r"q must be \(batch, heads, length, head_dim\).*\(4, 3, 8\)"),
    ({"v": K[..., None]}, ShapeError, r"v must be \(batch, heads"),
    ({"q": Q[:1]}, ShapeError, "one batch size; got q=1, k=2, v=2"),
    ({"v": K[:, :1]}, ShapeError, "same number of heads; got k=2, v=1"),
    ({"q": Q[:, :3]}, ShapeError, "num_heads=3, num_kv_heads=2"),
    ({"k": K[:, :0], "v": K[:, :0]}, ShapeError, "num_kv_heads=0"),
    ({"v": K[:, :, :4]}, ShapeError, "one kv_len; got k=5, v=4"),
    ({"q": Q[..., :7]}, ShapeError, "one head_dim, at least 1; got q=7, k=8"),
    ({"q": Q[..., :0], "k": K[..., :0]}, ShapeError, "got q=0, k=0"),
    ({"q": Q.long()}, DTypeError, "floating-point tensor of 16.*got q=torch.int64"),
    (dict.fromkeys("qkv", K.to(torch.float8_e5m2)), DTypeError, "16 bits or more; got q=torch.f"),
    ({"q": Q.double()}, DTypeError, "one dtype; got q=torch.float64, k=torch.float32"),
    ({"q": Q.to("meta")}, DeviceError, "one device; got q=meta, k=cpu"),
    ({"mask": torch.ones(3, 5)}, DTypeError, "must be bool, True = may see"),
    ({"mask": torch.ones(3, 5).long()}, DTypeError, "got mask=torch.int64"),
    ({"mask": "causal"}, DTypeError, "a Mask or a bool tensor; got mask=str"),
    ({"bias": torch.ones(3, 5).bool()}, DTypeError, "got bias=torch.bool.*is a mask="),
    ({"bias": 1.0}, DTypeError, "got bias=float"),
    ({"bias": torch.ones(2, 3, 5)}, ShapeError, r"= \(2, 4, 3, 5\), 1 where.*got shape \(2, 3, 5"),
    ({"bias": torch.ones(2, 2, 3, 5)}, ShapeError, r"got shape \(2, 2, 3, 5\)"),
    ({"bias": torch.ones(3, 5, device="meta")}, DeviceError, "got bias=meta"),
    ({"scale": float("nan")}, OptionError, "finite number; got scale=nan"),
    ({"scale": torch.tensor(1.0)}, OptionError, r"got scale=tensor\(1.\)"),
    ({"softcap": 0}, OptionError, "above 0; got softcap=0"),
    ({"softcap": float("inf")}, OptionError, "got softcap=inf"),
    ({"sink_logits": torch.zeros(2)}, ShapeError, r"a tensor \(4,\).*got \(2,\)"),
    ({"sink_logits": 0.0}, ShapeError, r"got 0.0. Expand one for all with .expand\(4\)"),
    ({"sink_logits": torch.zeros(4, device="meta")}, DeviceError, "got sink_logits=meta"),
    ({"sink_logits": torch.zeros(4).bool()}, DTypeError, "got sink_logits=torch.bool"),
    ({"dropout": None}, OptionError, "got dropout=None"),
    ({"dropout": []}, OptionError, r"got dropout=\[\]"),
    ({"dropout": 1.0}, OptionError, r"in \[0, 1\); got dropout=1.0"),
    ({"dropout": -0.1}, OptionError, "got dropout=-0.1"),
    (
        {"backend": "flash"},
        BackendError,
        "one of auto, .*fused, chunked, reference; got backend='flash'",
    ),
    ({"backend": "fused", "softcap": 2.0}, BackendError, "the kernel has no softcap. Either leave"),
]


@pytest.mark.parametrize(("changes", "kind", "words"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_refused_by_name(
    changes: dict[str, object], kind: type[ManyheadsError], words: str
) -> None:
    with pytest.raises(kind, match=words) as refused:
        call(**changes)
    assert pytest.RaisesExc(kind, match=SENTENCE).matches(refused.value), str(refused.value)


def test_numbers_may_be_those_of_numpy_or_fractions() -> None:
    for number in (np.float32(0.25), np.float64(0.25), Fraction(1, 4)):
        q = torch.randn(1, 4, 3, 8)
        found = mh.attention(q, K[:1], K[:1], scale=number, softcap=number)  # type: ignore[arg-type]
        assert torch.equal(found, mh.attention(q, K[:1], K[:1], scale=0.25, softcap=0.25))
        torch.manual_seed(0)
        found = mh.attention(q, K[:1], K[:1], dropout=number)  # type: ignore[arg-type]
        torch.manual_seed(0)
        assert torch.equal(found, mh.attention(q, K[:1], K[:1], dropout=0.25))
    assert torch.equal(call(scale=np.int64(2)), call(scale=2))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"finite number; got scale=np\.float32"):
        call(scale=np.float32("nan"))
    with pytest.raises(OptionError, match=r"got scale=np\.True_"):
        call(scale=np.bool_(True))


def test_counts_may_be_those_of_numpy() -> None:
    q = torch.randn(1, 4, 40, 8)
    one = np.int64

    def both(make: Callable[[type], object]) -> None:
        found = (
            mh.attention(q, q, q, x) if isinstance(x, mh.Mask) else mh.attention(q, q, q, bias=x)
            for x in (make(int), make(one))
        )
        assert torch.equal(*found)  # type: ignore[arg-type]

    both(lambda kind: mh.Causal() & mh.Window(kind(3)))
    both(lambda kind: mh.RandomBlocks(kind(2), kind(4), length=kind(40), seed=kind(2**62)))
    both(lambda kind: mh.ALiBi(kind(4)))
    again = mh.attention(q, q, q, mh.Causal(), q_pos=one(2), kv_pos=one(2))  # type: ignore[arg-type]
    assert torch.equal(again, mh.attention(q, q, q, mh.Causal()))
    assert mh.Scores(scale=np.float32(0.5)) == mh.Scores(scale=0.5)
    assert mh.Sampling(np.float32(0.5), top_k=one(3)) == mh.Sampling(0.5, top_k=3)
    with pytest.raises(OptionError, match=r"size must be an int of at least 1; got size=np\.int64"):
        mh.Window(one(0))


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(OptionError, match="raw, capped, masked, softmax; got stage='logits'"):
        mh.attention_scores(Q, K, K, stage="logits")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [ValueError, TypeError, RuntimeError])
def test_our_errors_are_caught_by_those_who_do_not_know_us(wrong: type[Exception]) -> None:
    mistakes: dict[type[Exception], Callable[[], object]] = {
        ValueError: lambda: call(q=Q[0]),
        TypeError: lambda: call(mask="causal"),
        RuntimeError: lambda: call(backend="flash"),
    }
    with pytest.raises(wrong):
        mistakes[wrong]()
