"""What a watch refuses, and that it always takes its hands off."""

import contextlib
import copy
import pickle

import pytest
import torch
from tests.probe.by_hand import Separate
from torch import nn
from torch.utils.checkpoint import checkpoint

import manyheads as mh
from manyheads.errors import DTypeError, OptionError, ProbeError
from manyheads.functional import Call
from manyheads.probe.call import AttentionCall, disagreement


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"attention": Separate(), "other": nn.Linear(32, 32)})
        self.decoder = nn.ModuleDict({"attention": Separate()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder["attention"](self.encoder["attention"](x))


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_layers_are_chosen_by_path_by_what_holds_them_and_by_pattern():
    model, x = Two().eval(), torch.randn(1, 5, 32)
    for layers, places in (
        (None, ["encoder.attention", "decoder.attention"]),
        ("encoder", ["encoder.attention"]),
        (["decoder.attention"], ["decoder.attention"]),
        ("*.attention", ["encoder.attention", "decoder.attention"]),
    ):
        with mh.probe.watch(model, layers=layers) as calls:
            model(x)
        assert [call.where for call in calls] == places


def test_a_wrong_layer_is_refused_with_those_near_it():
    with (
        pytest.raises(OptionError, match=r"got layers='encodr'. Near it are 'encoder'"),
        mh.probe.watch(Two(), layers="encodr"),
    ):
        pass


def test_a_wrong_head_is_refused_with_the_number_there_are():
    model = Two().eval()
    with (
        pytest.raises(OptionError, match=r"from 0 to 3; got heads=\[0, 4\], and encoder.attention"),
        mh.probe.watch(model, heads=[0, 4]),
    ):
        model(torch.randn(1, 5, 32))
    assert hooks(model) == 0


def test_a_layer_without_attention_says_where_it_is_made():
    model = Two().eval()
    with (
        pytest.raises(ProbeError, match="in the layers it was told; got 2 calls, all in other"),
        mh.probe.watch(model, layers="encoder.other"),
    ):
        model(torch.randn(1, 5, 32))


def test_a_model_that_was_not_run_is_an_error_that_says_so():
    with (
        pytest.raises(ProbeError, match=r"got none.*Run the model inside the block"),
        mh.probe.watch(Two()),
    ):
        pass


def test_what_is_no_module_is_refused():
    with (
        pytest.raises(DTypeError, match=r"model must be a torch\.nn.Module; got model=function"),
        mh.probe.watch(hooks),
    ):
        pass


def test_hooks_come_off_when_the_model_fails():
    model = Two().eval()
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        mh.probe.watch(model),
    ):
        model(torch.randn(1, 5, 31))
    assert hooks(model) == 0
    assert torch.backends.mha.get_fastpath_enabled()
    assert not torch._C._len_torch_dispatch_stack() and not torch._C._len_torch_function_stack()
    with mh.probe.watch(model) as calls:  # and the next watch knows where it is
        model(torch.randn(1, 5, 32))
    assert [call.where for call in calls] == ["encoder.attention", "decoder.attention"]


def test_a_failure_that_the_model_mends_leaves_the_places_right():
    class Mends(Two):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(RuntimeError):
                self.encoder["attention"](x[..., :7])
            return self.decoder["attention"](x)

    with mh.probe.watch(model := Mends().eval()) as calls:
        model(torch.randn(1, 5, 32))
    assert [call.where for call in calls] == ["decoder.attention"]


def test_a_model_on_the_meta_device_is_seen_and_has_no_numbers():
    model = mh.MultiHeadAttention(32, 4, device="meta")
    with mh.probe.watch(model) as calls:
        model(torch.randn(1, 5, 32, device="meta"))
    assert "refused" in repr(calls[0])
    with pytest.raises(ProbeError, match="tensors on the meta device hold no numbers"):
        calls[0].weights()


def test_a_call_that_does_not_explain_its_output_is_refused():
    q, k, v = torch.randn(3, 1, 2, 7, 8)
    call = mh.statistics(q, k, v, mh.Causal()).call
    out, _weights = mh.attention_with_weights(q, k, v, mh.Causal())
    assert disagreement(call, out) is None
    assert disagreement(call, out * 1.1) == (
        "the output computed from what was seen differs from the model's own"
    )
    refused = AttentionCall("layer", "sdpa", call, refusal=disagreement(call, out * 1.1))
    for ask in (refused.entropy, refused.weights, refused.received, lambda: refused.top(2)):
        with pytest.raises(ProbeError, match="got layer, where the output computed from what was"):
            ask()


def test_a_gate_between_softmax_and_values_is_refused_or_told_before_it():
    class Normed(Separate):
        def attend(self, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.weights = scores.softmax(dim=-1)
            return self.merge((self.weights * self.weights.amax(-1, keepdim=True)) @ v)

    with mh.probe.watch(model := Normed().eval()) as calls:
        model(torch.randn(1, 5, 32))
    torch.testing.assert_close(calls[0].weights(), model.weights)  # those of the softmax


def test_only_what_each_returns_is_kept():
    model = Two().eval()
    kept: list[Call] = []
    with mh.probe.watch(model, each=lambda call: call.peak().key.shape) as found:
        model(torch.randn(1, 5, 32))
    assert found == [(1, 4, 5), (1, 4, 5)] and not kept


def test_what_is_kept_is_its_own_and_no_view_of_the_model():
    model = mh.MultiHeadAttention(32, 4, projections="packed").eval()
    with mh.probe.watch(model) as calls:
        model(torch.randn(1, 5, 32))
    q = calls[0].call.q
    assert q.untyped_storage().nbytes() == q.nbytes


def test_compiled_code_is_seen_because_it_runs_uncompiled_while_watched():
    model = Separate().eval()
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(1, 5, 32)
    plain = compiled(x)
    with mh.probe.watch(compiled) as calls:
        torch.testing.assert_close(compiled(x), plain)
    torch.testing.assert_close(calls[0].weights(), model.weights)


def test_copies_that_are_made_while_watched_are_not_watched():
    model, x = Two().eval(), torch.randn(1, 5, 32)
    with mh.probe.watch(model) as calls:
        copied = copy.deepcopy(model)
        stored = pickle.loads(pickle.dumps(model))
        for other in (copied, stored):
            assert other(x).equal(model(x))
    assert len(calls) == 4 and hooks(model) == 0
    with mh.probe.watch(copied) as its_own:
        copied(x)
    assert len(its_own) == 2 and len(calls) == 4


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_model_that_is_traced_or_exported_in_the_block_is_refused():
    model, x = Two().eval(), torch.randn(1, 5, 32)
    for record in (torch.jit.trace, torch.export.export):
        with (
            pytest.raises(ProbeError, match="a watched model must run; got one that is traced"),
            mh.probe.watch(model),
        ):
            record(model, (x,))
        assert hooks(model) == 0


class Plain(nn.Module):
    """What torch can script."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(-2, -1), dim=-1) @ x


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_scripted_model_is_refused_and_a_scripted_part_is_seen_around_it():
    scripted, x = torch.jit.script(Plain()), torch.randn(1, 5, 8)
    with (
        pytest.raises(ProbeError, match="must run in Python to be watched; got a RecursiveScript"),
        mh.probe.watch(scripted),
    ):
        scripted(x)
    with mh.probe.watch(model := nn.Sequential(scripted)) as calls:
        model(x)
    assert [call.where for call in calls] == ["(the model)"]
    right = (x @ x.mT).softmax(dim=-1)
    torch.testing.assert_close(calls[0].weights()[:, 0], right, rtol=0, atol=1e-6)


def test_calls_under_vmap_and_grad_are_seen_once():
    model, x = Separate().eval(), torch.randn(3, 5, 32)
    with mh.probe.watch(model) as calls:
        torch.vmap(lambda each: model(each[None]))(x)
    assert calls[0].weights().shape == (3, 4, 5, 5)
    with mh.probe.watch(model) as calls:
        torch.func.grad(lambda x: model(x).sum())(x)
    weights = calls[0].weights()
    model(x)
    assert len(calls) == 1
    torch.testing.assert_close(weights, model.weights.detach(), rtol=0, atol=1e-6)


def test_torchs_layer_under_vmap_is_seen_too():
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(3, 1, 5, 8)
    with mh.probe.watch(layer) as calls:
        torch.vmap(lambda x: layer(x, x, x, need_weights=True)[0])(x)
    assert {call.refusal for call in calls} == {None}


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_layer_that_is_computed_again_for_its_gradient_is_seen_again(reentrant):
    model, x = Separate().eval(), torch.randn(1, 5, 32, requires_grad=True)
    with mh.probe.watch(model) as calls:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert len(calls) == 2
    assert calls[0].weights().equal(calls[1].weights())
