"""Each measure, on a head that is built to have all of it, on a uniform one, and by hand."""

import math

import pytest
import torch
from tests.lens.hand import TEXT, looked_up, looks_at, matcher

import manyheads as mh
from manyheads.errors import OptionError, ShapeError
from manyheads.lens import (
    coverage,
    duplicate_token_score,
    effective_keys,
    flow,
    induction_score,
    mean_distance,
    of_weights,
    offset_score,
    offset_share,
    previous_token_score,
    redundancy,
    relation_share,
    rollout,
    sink_mass,
    uniform,
    value_norms,
    weighted_norms,
)


def even(length, mask=None, heads=1):
    return mh.statistics(*torch.zeros(3, 1, heads, length, 4), mask)


def test_a_head_that_looks_one_back_has_a_previous_token_score_of_one():
    head = of_weights(looks_at([0, 0, 1, 2, 3]))
    assert previous_token_score(head).item() == pytest.approx(1.0)
    assert offset_score(head, 0).item() == pytest.approx(0.2)  # the first token looks at itself
    assert offset_score(head, -1).item() == 0.0


def test_a_uniform_causal_head_has_the_mean_of_one_over_what_it_sees():
    head = even(5, mh.Causal())
    assert previous_token_score(head).item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4)
    assert sink_mass(head).item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4)


def test_a_head_on_the_first_token_is_a_sink_whose_own_row_does_not_count():
    assert sink_mass(of_weights(looks_at([0, 0, 0, 0]))).item() == pytest.approx(1.0)
    assert sink_mass(of_weights(looks_at([0, 1, 2, 3]))).item() == 0.0
    last = torch.tensor([False, False, False, True])
    assert sink_mass(of_weights(looks_at([3, 3, 3, 0])), last).item() == pytest.approx(1.0)


def test_a_matcher_of_tokens_is_told_from_an_induction_head():
    assert duplicate_token_score(matcher(TEXT, 0), TEXT).item() < 0.6  # it looks at itself as well
    copies = of_weights(looks_at(looked_up(TEXT, 0)))
    assert duplicate_token_score(copies, TEXT).item() == pytest.approx(1.0)
    assert induction_score(copies, TEXT).item() < 0.2
    followers = of_weights(looks_at(looked_up(TEXT, 1)))
    assert induction_score(followers, TEXT).item() == pytest.approx(1.0)
    assert duplicate_token_score(followers, TEXT).item() == 0.0


def test_a_previous_token_head_below_a_matcher_makes_an_induction_head():
    assert induction_score(matcher(TEXT, 1), TEXT).item() == pytest.approx(1.0, abs=1e-4)


def test_scores_of_copies_are_masses_in_the_written_weights_at_any_length():
    torch.manual_seed(0)
    ids = torch.randint(4, (2, 150))
    call = mh.statistics(*torch.randn(3, 2, 3, 150, 8, dtype=torch.float64), mh.Causal())
    same = (ids[:, :, None] == ids[:, None]) & torch.ones(150, 150).tril(-1).bool()
    followed = torch.zeros_like(same)
    followed[:, :, 1:] = ids[:, :, None] == ids[:, None, :-1]
    followed &= torch.ones(150, 150).tril(-1).bool()
    for score, pairs in ((duplicate_token_score, same), (induction_score, followed)):
        rows = (call.weights() * pairs[:, None]).sum(-1)
        has = pairs.any(-1)[:, None]
        wanted = (rows * has).sum(-1) / has.sum(-1)
        torch.testing.assert_close(score(call, ids), wanted)


def test_queries_behind_a_cache_find_their_own_token_among_the_keys():
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 11, 8)
    whole = torch.randn(1, 1, 11, 8)
    whole[:, :, -3:] = q
    part = mh.statistics(q, k, k, mh.Causal()).mass_behind(0)
    torch.testing.assert_close(
        part, mh.statistics(whole, k, k, mh.Causal()).mass_behind(0)[..., -3:]
    )
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 1, 9, 2])
    weights = mh.statistics(q, k, k, mh.Causal()).weights()[0, 0]
    expected = (weights[0, 1] + weights[2, 2]) / 2  # "1" and "2" stand at the start
    found = induction_score(mh.statistics(q, k, k, mh.Causal()), ids)
    torch.testing.assert_close(found.squeeze(), expected)


def test_spread_is_told_in_keys_tokens_and_shares():
    flat, sharp = even(6), of_weights(looks_at([0, 1, 2, 3, 4, 5]))
    assert effective_keys(flat).item() == pytest.approx(6)
    assert effective_keys(sharp).item() == pytest.approx(1)
    assert mean_distance(sharp).item() == 0
    assert mean_distance(of_weights(looks_at([3, 0, 0, 0]))).item() == pytest.approx(9 / 4)
    assert coverage(flat).item() == pytest.approx(1)
    assert coverage(of_weights(looks_at([2, 2, 2, 2]))).item() == pytest.approx(1 / 4)
    assert coverage(of_weights(looks_at([0, 0, 1, 1]))).item() == pytest.approx(2 / 4)


def test_queries_that_see_nobody_do_not_count():
    blind = of_weights(looks_at([-1, 0, 1, -1]))
    assert previous_token_score(blind).item() == pytest.approx(1.0)
    nobody = of_weights(looks_at([-1, -1]))
    for measure in (previous_token_score, sink_mass, effective_keys, mean_distance, coverage):
        assert measure(nobody).item() == 0.0


def test_a_parse_is_followed_by_the_head_that_has_it():
    parse = torch.tensor([2, 2, -1, 2, 3])
    assert relation_share(of_weights(looks_at([2, 2, 0, 2, 3])), parse).item() == 1.0
    assert relation_share(of_weights(looks_at([2, 0, 0, 0, 3])), parse).item() == 0.5
    assert offset_share(parse) == (-1, 0.5)


def test_redundancy_is_nothing_for_equal_heads_and_log_two_for_strangers():
    first = torch.cat([looks_at([0, 1, 2]), looks_at([1, 2, 0]), looks_at([0, 1, 2])], dim=1)
    found = redundancy([of_weights(first), even(3)])
    assert found[0, 2].item() == pytest.approx(0, abs=1e-6)
    assert found[0, 1].item() == pytest.approx(math.log(2))
    # One key against three: H((2/3, 1/6, 1/6)) - log(3) / 2.
    mixed = 2 / 3 * math.log(3 / 2) + 1 / 3 * math.log(6)
    assert found[0, 3].item() == pytest.approx(mixed - math.log(3) / 2, abs=1e-6)
    torch.testing.assert_close(found, found.T)


def test_a_value_of_nothing_gives_nothing_however_much_it_is_read():
    q = k = torch.zeros(1, 2, 3, 4)
    v = torch.randn(1, 1, 3, 5)
    v[:, :, 0] = 0
    call, out_proj = mh.statistics(q[:, :, :, :], k[:, :1], v), torch.randn(7, 10)
    written = torch.stack([v[0, 0] @ out_proj[:, :5].T, v[0, 0] @ out_proj[:, 5:].T])
    torch.testing.assert_close(value_norms(call, out_proj)[0], written.norm(dim=-1))
    torch.testing.assert_close(
        weighted_norms(call, out_proj)[0], written.norm(dim=-1)[:, None].expand(2, 3, 3) / 3
    )
    assert weighted_norms(call)[..., 0].abs().max() == 0


def test_rollout_multiplies_layers_with_the_residual_and_never_sees_the_future():
    torch.manual_seed(0)
    calls = [mh.statistics(*torch.randn(3, 1, 2, 70, 8), mh.Causal()) for _ in range(3)]
    whole = torch.eye(70)
    for call in calls:
        whole = (torch.eye(70) / 2 + call.weights()[0].mean(0) / 2) @ whole
    torch.testing.assert_close(rollout(calls)[0], whole)
    torch.testing.assert_close(rollout(calls, queries=[69, 3])[0], whole[[69, 3]])
    assert rollout(calls, queries=[3])[0, 0, 4:].abs().max() == 0
    torch.testing.assert_close(rollout(calls).sum(-1), torch.ones(1, 70))


def test_flow_is_bounded_by_the_narrowest_pipe_and_not_below_rollout():
    torch.manual_seed(0)
    calls = [mh.statistics(*torch.randn(3, 1, 2, 6, 4), mh.Causal()) for _ in range(3)]
    found = flow(calls, query=5)
    assert (found >= rollout(calls, queries=[5])[0, 0] - 1e-6).all()
    mixed = [torch.eye(6) / 2 + call.weights()[0].mean(0) / 2 for call in calls]
    # Into token 5 leads one edge of the first layer, since nobody before it sees it.
    assert found[5].item() == pytest.approx(min(layer[5, 5].item() for layer in mixed), abs=1e-5)
    one = flow(calls[:1], query=4)
    torch.testing.assert_close(one, mixed[0][4])
    assert flow(calls, query=2)[3:].abs().max() == 0


@pytest.mark.parametrize(
    "measure",
    [
        previous_token_score,
        sink_mass,
        effective_keys,
        mean_distance,
        coverage,
        lambda call: induction_score(call, TEXT),
        lambda call: duplicate_token_score(call, TEXT),
    ],
)
def test_the_baseline_is_what_a_uniform_head_scores(measure):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 11, 8)
    hidden = torch.zeros(1, 1, 11, 11).masked_fill(~mh.Causal().dense(11), torch.finfo().min)
    by_mask = uniform(mh.statistics(q, k, v, mh.Causal()))
    by_bias = uniform(mh.statistics(q, k, v, bias=hidden))
    torch.testing.assert_close(measure(by_mask), measure(even(11, mh.Causal(), heads=2)))
    torch.testing.assert_close(measure(by_bias), measure(by_mask))


def test_what_does_not_fit_is_refused():
    call = even(4)
    with pytest.raises(ShapeError, match="tokens must be"):
        induction_score(call, torch.arange(5))
    with pytest.raises(ShapeError, match="answers must be"):
        relation_share(call, torch.arange(5))
    with pytest.raises(OptionError, match="answers must be from 0 to 3"):
        relation_share(call, torch.tensor([0, 1, 4, 0]))
    with pytest.raises(OptionError, match="answers must hold"):
        offset_share(torch.tensor([-1]))
    with pytest.raises(ShapeError, match="as many sequences"):
        redundancy([call, even(5)])
    with pytest.raises(ShapeError, match="self-attention over the same"):
        rollout([call, even(5)])
    with pytest.raises(OptionError, match="queries must be among"):
        rollout([call], queries=[4])
    with pytest.raises(ShapeError, match="at most 256"):
        flow([even(300)], query=0)
    with pytest.raises(ShapeError, match="out_proj must be"):
        value_norms(call, torch.zeros(4, 5))
    with pytest.raises(ShapeError, match="weights must be"):
        of_weights(torch.eye(3))
    with pytest.raises(OptionError, match="each row with the sum 1"):
        of_weights(torch.eye(3)[None, None] / 2)
