"""Layers under everything that torch does to modules."""

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import manyheads as mh

F64 = torch.float64
LENGTHS = torch.tensor([5, 3])


class Attends(nn.Module):
    """Each layer with inputs of one kind: x and a context."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, options = name, {"dtype": F64}
        rotary = mh.Rotary(4)
        self.layer: nn.Module
        if name == "attention":
            self.layer = mh.MultiHeadAttention(
                8, 2, num_kv_heads=1, qk_norm="rms", rotary=rotary, **options
            )
        elif name == "context":
            self.layer = mh.MultiHeadAttention(8, 2, projections="packed", **options)
        elif name == "scores and gates":
            scores = mh.Scores(0.3, 2.0, head_scale=True, sinks=True)
            self.layer = mh.MultiHeadAttention(8, 2, scores=scores, gate="head", **options)
        elif name == "differential":
            self.layer = mh.DifferentialAttention(8, 2, rotary=rotary, **options)
        elif name == "latents":
            self.layer = mh.LatentAttention(
                *(8, 2, 6), head_dim=4, query_latent_dim=5, rotary=rotary, **options
            )
        elif name == "encoder layer":
            self.layer = mh.EncoderLayer(8, 2, 16, rotary=rotary, **options)
        else:
            self.layer = mh.DecoderLayer(8, 2, 16, norm="pre", rotary=rotary, **options)

    def forward(self, x: Tensor, context: Tensor, lengths: Tensor = LENGTHS) -> Tensor:
        if self.name == "context":
            return self.layer(x, context, mask=mh.Padding(lengths=lengths))
        if self.name == "decoder layer":
            return self.layer(x, context, context_mask=mh.Padding(lengths=lengths))
        return self.layer(x, mask=mh.Causal() & mh.Window(3))


NAMES = (
    *("attention", "context", "scores and gates", "differential", "latents"),
    *("encoder layer", "decoder layer"),
)


def inputs(length: int = 4, batch: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, length, 8, dtype=F64), torch.randn(batch, 5, 8, dtype=F64)


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest) -> Attends:
    return Attends(request.param).eval()


def test_copies_compute_the_same(module: Attends) -> None:
    given = inputs()
    expected = module(*given)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    copies.append(torch.load(file, weights_only=False))
    for other in copies:
        assert torch.equal(other(*given), expected)
        other.load_state_dict(module.state_dict(), strict=True)  # hooks travelled too
        with torch.no_grad():
            next(other.parameters()).zero_()
        assert torch.equal(module(*given), expected)


def test_state_dicts_and_functional_calls_hold_all_there_is(module: Attends) -> None:
    given = inputs()
    other = Attends(module.name).eval()
    assert not torch.allclose(other(*given), module(*given))
    called = torch.func.functional_call(other, module.state_dict(), given)
    assert torch.equal(called, module(*given))
    other.load_state_dict(module.state_dict(), strict=True)
    assert torch.equal(other(*given), module(*given))


def test_compiled_without_a_break_it_is_the_same(module: Attends) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_equal_with_gradients(compiled, module, 4)


def test_compiled_it_takes_another_length() -> None:
    torch._dynamo.reset()
    module = Attends("attention").eval()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for length in (4, 6):
        assert_equal_with_gradients(compiled, module, length)


def assert_equal_with_gradients(compiled: nn.Module, module: nn.Module, length: int) -> None:
    x, context = inputs(length)
    x.requires_grad_()
    out, right = compiled(x, context), module(x, context)
    assert_close(out, right)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert_close(gradient, torch.autograd.grad(right.sum(), x)[0])


def test_exported_it_serves_every_length(module: Attends) -> None:
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        module, inputs(4), dynamic_shapes=({1: length}, None), strict=False
    )
    for count in (3, 4, 9):
        given = inputs(count)
        assert_close(program.module()(*given), module(*given))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_per_sample_gradients_can_be_mapped(module: Attends) -> None:
    x, context = inputs(batch=3)
    lengths = torch.tensor([5, 3, 1])
    parameters = dict(module.named_parameters())

    def loss(parameters: dict[str, Tensor], *sample: Tensor) -> Tensor:
        batch_of_one = tuple(each[None] for each in sample)
        out = torch.func.functional_call(module, parameters, batch_of_one)
        return out.square().sum()

    samples = (x, context, lengths)
    mapped = torch.func.vmap(torch.func.grad(loss), (None, 0, 0, 0))(parameters, *samples)
    for row in range(3):
        alone = torch.func.grad(loss)(parameters, *(each[row] for each in samples))
        for name, gradient in alone.items():
            assert_close(mapped[name][row], gradient)


def test_every_parameter_learns(module: Attends) -> None:
    module(*inputs()).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name


def test_weights_come_out_of_layers_too() -> None:
    x, context = inputs()
    encoder, decoder = Attends("encoder layer").eval(), Attends("decoder layer").eval()
    out, weights = encoder.layer.with_weights(x, mask=mh.Causal())
    assert_close(out, encoder.layer(x, mask=mh.Causal()))
    assert_close(weights.sum(-1), torch.ones(2, 2, 4, dtype=F64))
    assert weights.triu(1).eq(0).all()
    out, own, crossed = decoder.layer.with_weights(x, context)
    assert_close(out, decoder.layer(x, context))
    assert own.shape == (2, 2, 4, 4) and crossed.shape == (2, 2, 4, 5)
    assert own.triu(1).eq(0).all(), "a decoder layer is causal unless told otherwise"
    assert decoder.layer.with_weights(x, context, mask=None)[1].triu(1).gt(0).any()


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
def test_a_network_bends_as_its_name_says(activation: str) -> None:
    network = mh.FeedForward(3, 5, activation=activation, dtype=F64)  # type: ignore[arg-type]
    x = torch.randn(2, 4, 3, dtype=F64)
    up = network.up(x)
    bent = {
        "relu": up.clamp(min=0),
        "gelu": up * (1 + torch.erf(up / 2**0.5)) / 2,
        "silu": up * up.sigmoid(),
    }
    if network.gate is not None:
        gate = network.gate(x)
        bent["swiglu"] = gate * gate.sigmoid() * up
    assert_close(network(x), network.down(bent[activation]))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_drop_only_in_training(norm: str) -> None:
    layer = mh.DecoderLayer(8, 2, 16, norm=norm, dropout=0.5, dtype=F64)  # type: ignore[arg-type]
    x, context = inputs()
    before = torch.get_rng_state()
    clean = layer.eval()(x, context)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.allclose(layer.train()(x, context), clean)
    still = mh.DecoderLayer(8, 2, 16, norm=norm, dropout=0.0, dtype=F64)  # type: ignore[arg-type]
    assert torch.equal(still.train()(x, context), still.eval()(x, context))
