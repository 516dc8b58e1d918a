"""The fused kernel's log-sum-exp, and sinks by it, equal the reference in value and gradient."""

import pytest
import torch

import manyheads as mh
from manyheads.errors import BackendError

MASKS = {
    "none": None,
    "causal": mh.Causal(),
    "window": mh.Causal() & mh.Window(3),
    "a whole sample empty": mh.Padding(lengths=torch.tensor([3, 0])),
    "left padding": mh.Causal() & mh.Padding(torch.arange(9).expand(2, 9) > 3),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 6e-2}


def inputs(dtype, num_kv_heads=2, value_dim=8):
    shapes = [(2, 4, 9, 8), (2, num_kv_heads, 9, 8), (2, num_kv_heads, 9, value_dim), (4,)]
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def results(leaves, mask, backend, *, sinks, lse):
    q, k, v, sink_logits = leaves
    options = {"sink_logits": sink_logits if sinks else None, "backend": backend}
    if lse:
        found = mh.attention_with_lse(q, k, v, mask, **options)
    else:
        found = (mh.attention(q, k, v, mask, **options),)
    torch.manual_seed(1)
    weights = [torch.randn(x.shape, dtype=torch.float64) for x in found]
    finite = [x.double().masked_fill(x == -torch.inf, 0.0) for x in found]
    loss = sum((x * w).sum() for x, w in zip(finite, weights, strict=True))
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [*found, *(g for g in grads if g is not None)]


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("sinks", "lse"), [(True, False), (False, True), (True, True)])
def test_sinks_and_log_sum_exp_equal_the_reference(mask, dtype, sinks, lse):
    leaves = inputs(dtype)
    fused = results(leaves, mask, "fused", sinks=sinks, lse=lse)
    reference = results(leaves, mask, "reference", sinks=sinks, lse=lse)
    for ours, right in zip(fused, reference, strict=True):
        torch.testing.assert_close(ours.double(), right.double(), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("num_kv_heads", "value_dim"), [(1, 8), (4, 5), (4, 11)])
def test_grouped_heads_and_other_widths_of_values_do_too(num_kv_heads, value_dim):
    leaves = inputs(torch.float64, num_kv_heads, value_dim)
    fused = results(leaves, mh.Causal(), "fused", sinks=True, lse=True)
    reference = results(leaves, mh.Causal(), "reference", sinks=True, lse=True)
    for ours, right in zip(fused, reference, strict=True):
        torch.testing.assert_close(ours, right, rtol=0, atol=1e-10)


def test_a_sink_of_its_logit_takes_its_share():
    # Two keys of score 0 and a sink of log 2: the sink takes half of the weight.
    q = k = torch.zeros(1, 1, 2, 4)
    v = torch.ones(1, 1, 2, 4)
    sink = torch.tensor([2.0]).log()
    torch.testing.assert_close(mh.attention(q, k, v, sink_logits=sink, backend="fused"), v / 2)


def test_a_folded_bias_counts_in_the_share_of_the_sinks():
    q, k, v, sink = inputs(torch.float64)
    found = [
        mh.attention_with_lse(
            q, k, v, mh.Causal(), bias=mh.ALiBi(4), sink_logits=sink, backend=backend
        )
        for backend in ("fused", "reference")
    ]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


def test_second_derivatives_are_refused_rather_than_wrong():
    leaves = inputs(torch.float64)
    out, _ = mh.attention_with_lse(*leaves[:3], backend="fused")
    (grad,) = torch.autograd.grad((out**2).sum(), leaves[0], create_graph=True)
    with pytest.raises(BackendError, match="a second derivative must be one of"):
        grad.sum().backward()


def test_a_transform_of_torch_func_falls_to_the_reference():
    q, k, v, sink = (x.detach() for x in inputs(torch.float64))

    def one(q):
        return mh.attention(q[None], k[:1], v[:1], sink_logits=sink)[0]

    torch.testing.assert_close(
        torch.func.vmap(one)(q),
        mh.attention(q, k[:1].expand_as(k), v[:1].expand_as(v), sink_logits=sink),
    )
    with pytest.raises(BackendError, match=r"torch\.func"):
        torch.func.vmap(lambda q: mh.attention_with_lse(q[None], k[:1], v[:1], backend="fused")[1])(
            q
        )
