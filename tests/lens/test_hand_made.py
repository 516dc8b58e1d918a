"""Every measure on a model whose heads were built by hand, so that the right answer is known."""

import math

import pytest
import torch
from tests.lens.hand import TEXT
from tests.lens.hand_made import BEFORE, FIRST, PLACES, SECOND, TOKENS, HandMade, layer_of

import manyheads as mh
from manyheads.lens import (
    coverage,
    duplicate_token_score,
    effective_keys,
    flow,
    importance_by_ablation,
    importance_by_gradient,
    induction_score,
    mean_distance,
    of_weights,
    offset_score,
    offset_share,
    previous_token_score,
    redundancy,
    relation_share,
    relevance,
    rollout,
    sink_mass,
    summarize_heads,
    uniform,
    weighted_norms,
    without,
)

IDS = TEXT[None]
LOOKED_UP = [6, 8]  # 3 1 4 1 5 9 3 1 4 1 5: here a token stands whose copy has one follower
HEADS = [(layer, head) for layer, heads in (("first", FIRST), ("second", SECOND))
         for head in range(len(heads))]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return HandMade()


@pytest.fixture(scope="module")
def calls(model):
    with torch.no_grad(), mh.probe.watch(model) as calls:
        model(IDS)
    return calls


def copying_loss(model):
    """How surprised the model is by what it could look up."""
    followers = TEXT[[place + 1 for place in LOOKED_UP]]
    return torch.nn.functional.cross_entropy(model(IDS)[0, LOOKED_UP], followers)


def test_every_head_is_named_after_what_it_was_built_for(calls):
    found = summarize_heads(calls, TEXT)
    assert [(head.layer, head.head) for head in found] == HEADS
    assert [head.does for head in found] == [*FIRST, *SECOND]


@pytest.mark.parametrize(
    ("measure", "layer", "head"),
    [
        (previous_token_score, 0, 0),
        (lambda call: duplicate_token_score(call, TEXT), 0, 1),
        (sink_mass, 0, 2),
        (lambda call: induction_score(call, TEXT), 1, 0),
        (lambda call: offset_score(call, 0), 1, 1),
    ],
    ids=["previous token", "same token before", "first token", "what followed", "itself"],
)
def test_a_score_is_one_for_its_own_head_and_chance_for_the_even_one(calls, measure, layer, head):
    assert measure(calls[layer])[0, head].item() == pytest.approx(1, abs=1e-4)
    even, chance = measure(calls[0])[0, 3].item(), measure(uniform(calls[0]))[0, 3].item()
    assert even == pytest.approx(chance, abs=1e-6)
    assert chance < 0.5


def test_spread_is_that_of_the_heads_that_were_built(calls):
    keys, away = effective_keys(calls[0])[0], mean_distance(calls[0])[0]
    n = len(TEXT)
    assert keys[0].item() == pytest.approx(1, abs=1e-4)
    assert math.log(keys[3]) == pytest.approx(math.lgamma(n + 1) / n, abs=1e-4)  # 1, 2, ... n keys
    assert away[0].item() == pytest.approx((n - 1) / n, abs=1e-4)  # the first sees itself
    assert away[2].item() == pytest.approx((n - 1) / 2, abs=1e-4)
    assert away[3].item() == pytest.approx((n - 1) / 4, abs=1e-4)
    assert coverage(calls[0])[0, 2].item() == pytest.approx(1 / n, abs=1e-4)
    assert coverage(calls[1])[0, 1].item() == pytest.approx(1, abs=1e-4)


def test_relations_are_found_by_the_head_that_follows_them(calls):
    before = torch.arange(-1, len(TEXT) - 1)
    assert relation_share(calls[0], before)[0, 0].item() == 1
    assert relation_share(calls[0], before)[0, 1].item() < 0.5


def test_an_antecedent_is_found_by_the_head_that_looks_at_the_same_token_before(calls):
    answers = torch.full((len(TEXT),), -1)
    mentions = [(3, 1), (6, 0), (8, 2), (10, 4)]  # those that have one earlier copy
    for mention, antecedent in mentions:
        answers[mention] = antecedent
    shares = relation_share(calls[0], answers)[0]
    assert shares[1].item() == 1
    assert shares[[0, 2]].tolist() == [0, 0.25]  # the one at 6 stands first
    _, best = offset_share(answers)
    assert best < 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_step_back_in_each_layer_is_followed_to_where_it_leads(depth):
    one = layer_of({"previous token": FIRST["previous token"]}, to=BEFORE)
    x = torch.cat([torch.zeros(len(TEXT), TOKENS), torch.eye(PLACES),
                   torch.zeros(len(TEXT), TOKENS)], dim=-1)[None]  # fmt: skip
    with torch.no_grad(), mh.probe.watch(one) as stack:
        for _ in range(depth):
            x = x + one(x, mask=mh.Causal())
    # Whoever takes the stream or the head in each layer, evenly, goes back as a coin says.
    right = torch.zeros(PLACES)
    for steps in range(depth + 1):
        right[9 - steps] = math.comb(depth, steps) / 2**depth
    torch.testing.assert_close(rollout(stack, queries=[9])[0, 0], right, atol=1e-4, rtol=0)
    direct = rollout(stack, queries=[9], residual=0.0)[0, 0]
    assert direct[9 - depth].item() == pytest.approx(1, abs=1e-4)
    # As pipes each place can send what its narrowest pipe holds, whichever way.
    streams = flow(stack, query=9)
    assert streams[9].item() == streams[9 - depth].item() == pytest.approx(0.5, abs=1e-4)
    if depth > 1:
        assert streams[8].item() == pytest.approx(1, abs=1e-4)  # two ways that share no pipe
    assert streams[: 9 - depth].abs().sum() < 1e-4


def test_heads_that_never_look_at_the_same_key_have_nothing_in_common(calls):
    apart = redundancy(calls)
    itself, previous, first = 5, 0, 2
    n = len(TEXT)
    # The first token sees itself alone, whichever head it is.
    assert apart[itself, previous].item() == pytest.approx(math.log(2) * (n - 1) / n, abs=1e-4)
    assert apart[first, itself].item() == pytest.approx(math.log(2) * (n - 1) / n, abs=1e-4)


def test_an_induction_head_is_blind_without_the_head_that_it_is_built_upon(model):
    with torch.no_grad(), without(model, [("first", 0)]), mh.probe.watch(model) as found:
        model(IDS)
    # It now looks evenly at all but the first token, which it was built to leave out.
    seen = torch.ones(len(TEXT), len(TEXT)).tril()
    seen[1:, 0] = 0
    even = of_weights((seen / seen.sum(dim=-1, keepdim=True))[None, None])
    blind, chance = (induction_score(call, TEXT)[0, 0] for call in (found[1], even))
    torch.testing.assert_close(blind, chance)
    assert chance < 0.25


def test_importance_is_that_of_the_two_heads_of_the_circuit_alone(model):
    removed = importance_by_ablation(model, lambda: copying_loss(model), HEADS)
    followed = importance_by_gradient(model, lambda: copying_loss(model))
    assert copying_loss(model) < 0.1
    for layer, head in HEADS:
        slope = followed[layer][head].item()
        if head == 0:
            assert removed[layer, head] > 1
            assert (slope > 1e-3) == (layer == "second")  # where all is sharp nothing slopes below
        else:
            assert removed[layer, head] == slope == 0


def test_norms_are_those_of_the_heads_that_write(model, calls):
    norms = weighted_norms(calls[0], model.first.out_proj.weight)
    torch.testing.assert_close(norms[0, 0], calls[0].weights()[0, 0])  # a token is one long
    assert norms[0, 1:].abs().max() == 0


def test_relevance_is_at_what_followed_last_time(model):
    last = len(TEXT) - 1  # "1 5" stood at 3 and 4, and 5 is followed by 9
    row = relevance(model, lambda: model(IDS)[0, last, 9], queries=[last])[0, 0]
    assert row[last].item() == pytest.approx(1, abs=1e-4)
    row[last] = 0
    assert int(row.argmax()) == 5
