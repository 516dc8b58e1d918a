"""Rollout and flow through whole models, beside float64 worked out from written-out weights."""

from itertools import product

import pytest
import torch
import transformers as hf

import manyheads as mh
from manyheads.lens import (
    flow,
    importance_by_ablation,
    importance_by_gradient,
    rollout,
    uniform,
)

WORDS = {
    "vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 32, "max_position_embeddings": 16,
}  # fmt: skip
LENGTH, KEPT = 6, 4  # of two texts the second has two tokens of padding
KEEP = torch.arange(LENGTH) < torch.tensor([[LENGTH], [KEPT]])


def seen(model, *args, **kwargs):
    with torch.no_grad(), mh.probe.watch(model) as calls:
        model(*args, **kwargs)
    return list(calls)


def huggingface(kind, config):
    """A model's calls on its own kernel, and the weights of its eager twin in float64."""
    torch.manual_seed(0)
    model = kind(config(**WORDS, attn_implementation="sdpa")).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)  # or all heads would be nearly even
    ids = torch.randint(3, 30, (2, LENGTH))
    calls = seen(model, ids, attention_mask=KEEP.long())
    twin = model.double()
    twin.set_attn_implementation("eager")
    with torch.no_grad():
        found = twin(ids, attention_mask=KEEP.long(), output_attentions=True)
    return calls, list(found.attentions)


def bert():
    return huggingface(hf.BertModel, hf.BertConfig)


def llama():
    return huggingface(hf.LlamaModel, hf.LlamaConfig)


def ours(part):
    torch.manual_seed(0)
    config = mh.TransformerConfig(
        30, 30, d_model=32, num_heads=4, d_hidden=32, num_encoder_layers=3, num_decoder_layers=3
    )
    model = mh.Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.7)
    source, target = torch.randint(3, 30, (2, 2, LENGTH))
    source, target = (ids.where(KEEP, 0) for ids in (source, target))
    calls = seen(model, source, target)
    with torch.no_grad():
        _, weights = model.double().with_weights(source, target)
    kept = [weights[name] for name in weights if name.startswith(part) and "cross" not in name]
    own = [call for call in calls if call.where.startswith(part) and "cross" not in call.where]
    return own, kept


MODELS = {
    "BERT": bert,
    "Llama": llama,
    "our encoder": lambda: ours("encoder"),
    "our decoder": lambda: ours("decoder"),
}
IS_CAUSAL = {"Llama", "our decoder"}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    calls, weights = MODELS[request.param]()
    assert len(calls) == len(weights) == 3
    # Rows of padding are nobody's: what stands in them differs from kernel to kernel.
    for call, right in zip(calls, weights, strict=True):
        for text, length in enumerate((LENGTH, KEPT)):
            torch.testing.assert_close(
                call.weights()[text, :, :length].double(), right[text, :, :length],
                atol=1e-5, rtol=0,
            )  # fmt: skip
    return request.param, calls, weights


def mixed(weights, text, residual):
    """The layers' matrices of one text, without its padding."""
    length = (LENGTH, KEPT)[text]
    eye = torch.eye(length, dtype=torch.float64)
    heads = [each[text, :, :length, :length].mean(0) for each in weights]
    return [residual * eye + (1 - residual) * each for each in heads]


@pytest.mark.parametrize("residual", [0.0, 0.5, 0.8])
def test_rollout_is_the_product_of_the_layers_whatever_stands_in_the_padding(model, residual):
    name, calls, weights = model
    found = rollout(calls, residual=residual)
    for text, length in enumerate((LENGTH, KEPT)):
        first, second, third = mixed(weights, text, residual)
        right = third @ second @ first
        torch.testing.assert_close(found[text, :length, :length].double(), right, atol=2e-5, rtol=0)
        assert found[text, :length, length:].abs().max(dim=0).values.sum() == 0
        if name in IS_CAUSAL:
            assert found[text, :length, :length].triu(1).abs().max() == 0


def narrowest(layers, query, token):
    """The least of all cuts between a token of the last layer and one of the input: every one."""
    first, second, third = layers
    length = len(first)
    least = float("inf")
    for chosen in product([False, True], repeat=2 * length):
        above, below = torch.tensor(chosen).split(length)  # which are at the query's side
        cut = third[query][~above].sum()
        cut += second[above][:, ~below].sum()
        cut += first[below, token].sum()  # other inputs lead nowhere
        least = min(least, float(cut))
    return least


@pytest.mark.parametrize("query", [1, KEPT - 1])
def test_flow_is_the_least_of_all_cuts_through_the_layers(model, query):
    _, calls, weights = model
    text = 1  # the one with padding; 256 cuts a token
    alone = [mh.lens.of_weights(_alone(call, text)) for call in calls]
    found = flow(alone, query=query)
    layers = mixed(weights, text, 0.5)
    right = [narrowest(layers, query, token) for token in range(KEPT)]
    torch.testing.assert_close(found[:KEPT].tolist(), right, atol=2e-5, rtol=0)
    assert found[KEPT:].abs().sum() == 0


def _alone(call, text):
    """The weights of one text; rows of its padding are left out."""
    weights = call.weights()[text : text + 1].clone()
    weights[:, :, KEPT:] = 0
    return weights


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_rollout_and_flow_of_even_heads_are_what_they_are_said_to_be(layers):
    even = [uniform(mh.statistics(*torch.randn(3, 1, 2, 5, 8))) for _ in range(layers)]
    (row,) = rollout(even, queries=[2])[0]
    kept = 0.5**layers
    right = torch.full((5,), (1 - kept) / 5)
    right[2] += kept
    torch.testing.assert_close(row, right)
    found = flow(even, query=2)
    others = found[[0, 1, 3, 4]]
    torch.testing.assert_close(others, others[:1].expand(4))
    assert 1 + 1e-6 >= found[2] >= others[0] > 0


def test_heads_that_are_all_alike_share_their_importance_evenly():
    torch.manual_seed(0)
    layer, x = mh.MultiHeadAttention(16, 4, bias=False).double(), torch.randn(2, 7, 16).double()
    with torch.no_grad():
        layer.q_proj.weight.zero_()  # every head is even
        layer.v_proj.weight.copy_(layer.v_proj.weight[:4].repeat(4, 1))
        layer.out_proj.weight.copy_(layer.out_proj.weight[:, :4].repeat(1, 4))
    aim = torch.randn(7, 16).double()

    def loss():
        return (layer(x) * aim).sum()

    whole = float(loss().detach())
    (slopes,) = importance_by_gradient(layer, loss).values()
    torch.testing.assert_close(slopes, slopes[:1].expand(4))
    lost = importance_by_ablation(layer, loss, [("(the model)", head) for head in range(4)])
    torch.testing.assert_close([*lost.values()], [-whole / 4] * 4)
