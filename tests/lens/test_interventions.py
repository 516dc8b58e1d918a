"""Heads that are left out, weighed by gradients, or followed by them; in models of every kind."""

import pytest
import torch
import torch.nn.functional as F
from tests.probe.by_hand import STYLES, ByTorch, Einsum, Folded, OneByOne, Separate
from torch import nn

import manyheads as mh
from manyheads.errors import OptionError, ProbeError, ShapeError
from manyheads.lens import (
    importance_by_ablation,
    importance_by_gradient,
    relevance,
    without,
)

X = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))


def ours():
    return mh.MultiHeadAttention(16, 4, bias=False), lambda layer: layer.out_proj.weight


def torchs(*, need_weights=False):
    layer = nn.MultiheadAttention(16, 4, bias=False, batch_first=True)

    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, x, x, need_weights=need_weights)[0]

    return Alone(), lambda model: model.layer.out_proj.weight


def torchs_with_weights():
    return torchs(need_weights=True)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out_proj = nn.Linear(16, 48), nn.Linear(16, 16, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(out.transpose(1, 2).flatten(2))


def fused():
    return Fused(), lambda model: model.out_proj.weight


def llama():
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaModel(config)

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(inputs_embeds=x).last_hidden_state

    return Embedded(), lambda found: found.model.layers[0].self_attn.o_proj.weight


def by_matmul():
    return Separate(16), lambda model: model.o.weight


def by_einsum():
    return Einsum(16), lambda model: model.o.weight


def eager_llama():
    model, weight = llama()
    model.model.set_attn_implementation("eager")
    return model, weight


KINDS = [ours, torchs, torchs_with_weights, fused, llama, eager_llama, by_matmul, by_einsum]


def place(model):
    with mh.probe.watch(model) as calls, torch.no_grad():
        model(X)
    return calls[0].where


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_head_that_is_left_out_is_one_whose_columns_of_the_projection_are_nothing(kind):
    torch.manual_seed(0)
    model, weight = kind()
    model.eval()
    where = place(model)
    before = model(X)
    with without(model, [(where, 1), (where, 3)]):
        ablated = model(X)
    assert torch.equal(model(X), before)
    with torch.no_grad():
        weight(model)[:, 4:8] = 0
        weight(model)[:, 12:16] = 0
    torch.testing.assert_close(ablated, model(X))
    assert not torch.allclose(before, ablated)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_importance_is_the_slope_of_the_loss_along_the_head(kind):
    torch.manual_seed(0)
    model, weight = kind()
    model = model.double().eval()
    x, aim = X.double(), torch.randn(7, 16, dtype=torch.float64)

    def loss():
        return (model(x) * aim).mean()

    (found,) = importance_by_gradient(model, loss).values()
    # A gate on the head is one on its columns of the projection; each sequence by itself.
    slopes = []
    for head in range(4):
        columns = slice(4 * head, 4 * head + 4)
        by_sequence = []
        for sequence in range(2):
            losses = []
            for change in (0.03, -0.03):
                with torch.no_grad():
                    weight(model)[:, columns] *= 1 + change
                    out = model(x[sequence : sequence + 1])
                    losses.append(float((out * aim).sum() / (2 * out.numel())))
                    weight(model)[:, columns] /= 1 + change
            by_sequence.append(abs(losses[0] - losses[1]) / 0.06)
        slopes.append(sum(by_sequence))
    torch.testing.assert_close(
        found, torch.tensor(slopes, dtype=torch.float64), rtol=1e-3, atol=1e-6
    )


def test_ablation_finds_the_one_head_that_the_answer_hangs_on():
    torch.manual_seed(0)
    model, weight = ours()
    with torch.no_grad():
        weight(model)[:, :12] = 0  # only head 3 is heard
    target = model(X).detach()
    heads = [("(the model)", head) for head in range(4)]
    found = importance_by_ablation(model, lambda: F.mse_loss(model(X), target), heads)
    assert [found[head] for head in heads[:3]] == [0.0, 0.0, 0.0]
    assert found[heads[3]] == pytest.approx(float(target.square().mean()))
    gradient = importance_by_gradient(model, lambda: model(X).square().mean())["(the model)"]
    assert int(gradient.argmax()) == 3
    assert gradient[:3].abs().max() == 0


class Stack(nn.Module):
    """Layers that write weights out so that autograd has them."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = mh.MultiHeadAttention(16, 2)

    def forward(self, x):
        return self.layer(x, mask=mh.Causal())


def written_out(model, x, queries):
    """Equations 5 and 6 by weights that autograd sees."""
    stream, kept = x, []
    for layer in model.layers:
        layer = layer.layer
        q, k, v = (
            projection(stream).unflatten(-1, (2, 8)).transpose(1, 2)
            for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        weights = mh.attention_scores(q, k, v, mh.Causal(), stage="softmax")
        kept.append(weights)
        stream = stream + layer.out_proj((weights @ v).transpose(1, 2).flatten(2))
    return followed(torch.autograd.grad(stream[:, -1, 3].sum(), kept), kept)[:, queries]


def followed(slopes, kept):
    whole = torch.eye(7, dtype=kept[0].dtype)
    for weights, slope in zip(kept, slopes, strict=True):
        whole = whole + (weights * slope).clamp(min=0).mean(1) @ whole
    return whole.detach()


def test_relevance_is_that_of_the_paper_written_out():
    torch.manual_seed(0)
    model = Stack(Causal() for _ in range(3)).double().eval()
    x = X.double()
    found = relevance(model, lambda: model(x)[:, -1, 3].sum(), queries=[-1, 2])
    torch.testing.assert_close(found, written_out(model, x, [-1, 2]))


# Not those that fold heads into the batch or loop over them: they are layers of one head each.
WHOLE = [style for style in STYLES if style not in (OneByOne, Folded)]


@pytest.mark.parametrize("style", WHOLE, ids=lambda style: style.__name__)
def test_relevance_reaches_hand_written_layers_that_keep_their_weights(style):
    torch.manual_seed(0)
    model = Stack([style() for _ in range(2)]).eval()
    x = torch.randn(2, 7, 32)
    found = relevance(model, lambda: model(x)[:, -1, 3].sum())
    if style is ByTorch:  # its output does not hang on the weights that it keeps
        for layer in model.layers:
            layer.__class__ = Separate
    total = model(x)[:, -1, 3].sum()
    kept = [layer.weights for layer in model.layers]
    slopes = torch.autograd.grad(total, kept)
    torch.testing.assert_close(found, followed(slopes, kept))


def test_what_cannot_be_left_out_or_followed_is_refused():
    model, _ = ours()
    numbers = pytest.raises(OptionError, match="heads must be numbers from 0 to 3")
    with numbers, without(model, [("(the model)", 4)]):
        model(X)
    called = pytest.raises(OptionError, match="heads must be of layers that made a call")
    with called, without(model, [("layers.7", 0)]):
        model(X)
    seen = pytest.raises(ProbeError, match="must see at least one")
    with seen, without(model, [("(the model)", 0)]):
        pass
    looped = Stack([OneByOne()])
    with pytest.raises(ShapeError, match=r"calls must be one a layer; got 8 of"):
        relevance(looped, lambda: looped(torch.randn(2, 7, 32)).sum())
    blind, _ = by_matmul()
    blind.requires_grad_(False)
    with pytest.raises(ProbeError, match=r"gradients must reach the output of .the model.*Remove"):
        importance_by_gradient(blind, lambda: blind(X).sum())
    with pytest.raises(ProbeError, match="gradients must reach"):
        relevance(blind, lambda: torch.no_grad()(blind)(X).sum())


def test_a_layer_of_calls_of_two_shapes_is_named_and_what_to_do_is_said():
    """Longformer with a global token: its layers read all tokens, and once more the global one."""
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, attention_window=4,
    )  # fmt: skip
    model, ids = LongformerModel(config).eval(), torch.randint(3, 20, (1, 8))
    chosen = torch.tensor([[1] + [0] * 7])
    with torch.no_grad(), mh.probe.watch(model) as calls:
        model(ids, global_attention_mask=chosen)
    said = (
        r"got 2 of encoder\.layer\.0\..*, of \(q_len, kv_len\) .*\. It reads some tokens by .*run"
    )
    with pytest.raises(ShapeError, match=said):
        mh.lens.rollout(calls)
    with torch.no_grad(), mh.probe.watch(model) as calls:
        model(ids)
    assert mh.lens.rollout(calls).shape == (1, 8, 8)
