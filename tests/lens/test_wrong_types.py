"""Every public function of the lens, given what is none of its arguments' kinds."""

import re

import pytest
import torch

import manyheads as mh
from manyheads import lens
from manyheads.errors import ManyheadsError

torch.manual_seed(0)
LAYER, X = mh.MultiHeadAttention(16, 2).eval(), torch.randn(1, 4, 16)
with torch.no_grad(), mh.probe.watch(LAYER) as CALLS:
    LAYER(X, mask=mh.Causal())
CALL, WEIGHTS, IDS, LABELS = CALLS[0], CALLS[0].weights()[0], torch.tensor([1, 2, 1, 2]), [*"abcd"]
HEADS, SPANS = [("(the model)", 0)], [(0, 2), (2, 4)]


def ablated(model, heads):
    with lens.without(model, heads):
        return LAYER(X)


def paged(portraits, labels):
    return lens.write_page(portraits, labels, path="never.html")


def loss():
    return LAYER(X).square().mean()


GIVEN = {
    lens.coverage: [CALL],
    lens.draw_heads: [{"layer": WEIGHTS}, LABELS, LABELS],
    lens.draw_heatmap: [WEIGHTS[0], LABELS, LABELS],
    lens.draw_lines: [WEIGHTS[0], LABELS, LABELS],
    lens.draw_masks: [{"causal": mh.Causal().dense(4)[0, 0]}],
    lens.draw_patches: [torch.rand(3, 8, 8), torch.rand(2, 4), (2, 2)],
    lens.draw_profiles: [lens.summarize_heads([CALL])],
    lens.duplicate_token_score: [CALL, IDS],
    lens.effective_keys: [CALL],
    lens.explore: [[lens.portray(CALL)], LABELS],
    lens.flow: [[CALL], 1],
    lens.importance_by_ablation: [LAYER, loss, HEADS],
    lens.importance_by_gradient: [LAYER, loss],
    lens.induction_score: [CALL, IDS],
    lens.mean_distance: [CALL],
    lens.merge_labels: [LABELS, SPANS],
    lens.merge_weights: [WEIGHTS, SPANS, SPANS],
    lens.of_weights: [WEIGHTS[None]],
    lens.offset_score: [CALL, 1],
    lens.offset_share: [IDS],
    lens.portray: [CALL],
    lens.previous_token_score: [CALL],
    lens.redundancy: [[CALL]],
    lens.relation_share: [CALL, IDS],
    lens.relevance: [LAYER, loss],
    lens.rollout: [[CALL]],
    lens.sink_mass: [CALL, IDS == 1],
    lens.summarize_heads: [[CALL]],
    lens.summarize_layer: ["layer", CALL],
    lens.uniform: [CALL],
    lens.value_norms: [CALL],
    lens.weighted_norms: [CALL],
    ablated: [LAYER, HEADS],
    paged: [[lens.portray(CALL)], LABELS],
}
NONSENSE = [
    None, 3, "x", [3], [None], {"a": 3}, torch.zeros(0), torch.zeros(2, 2, 2, 2, 2),
    torch.zeros(3, dtype=torch.complex64), torch.zeros(2, 2, device="meta"), object(),
]  # fmt: skip
SENSE = {(lens.flow, 1): 3, (lens.offset_score, 1): 3, (lens.sink_mass, 1): None}
NAMES = {(lens.summarize_layer, 0)}  # of layers, which are free


def test_all_of_the_lens_is_here():
    apart = {"Cutout", "HeadSummary", "Portrait", "draw_comparison", "without", "write_page"}
    assert {each.__name__ for each in GIVEN} - {"ablated", "paged"} == {*lens.__all__} - apart


@pytest.mark.parametrize("function", GIVEN, ids=lambda function: function.__name__)
def test_what_is_no_argument_is_refused_by_rule_value_and_cure(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if function is lens.explore:
        pytest.importorskip("anywidget", reason="ends with: pip install '.[notebook]'")
    good = GIVEN[function]
    for place in {*range(len(good))} - {at for of, at in NAMES if of is function}:
        for nonsense in NONSENSE:
            if (function, place) in SENSE and nonsense is SENSE[function, place]:
                continue
            with pytest.raises(ManyheadsError) as refused:
                function(*good[:place], nonsense, *good[place + 1 :])
            said = str(refused.value).replace("\n", " ")
            assert re.search(r"must .+; got .+\. \S.+", said), said
    assert not (tmp_path / "never.html").exists()


@pytest.mark.parametrize("text", ["", "\ud800", "<script>alert(1)</script>", "x" * 5000, "\0"])
def test_any_text_of_a_single_token_of_half_precision_is_shown(tmp_path, text):
    q = torch.randn(1, 1, 1, 8, dtype=torch.float16)
    call = mh.statistics(q, q, q)
    page = lens.write_page([lens.portray(call, torch.tensor([5]))], [text],
                           path=tmp_path / "one.html", title=text)  # fmt: skip
    assert "<script>alert" not in page.read_text("utf-8")
    assert page.stat().st_size < 200_000
    lens.draw_heatmap(call.weights()[0, 0], [text], [text], path=tmp_path / "one.png")
    lens.draw_lines(call.weights()[0, 0], [text], [text])
    (head,) = lens.summarize_layer("layer", call, torch.tensor([5]))
    assert (head.effective_keys, head.peak, head.itself) == (1, 1, 1)


def test_marks_may_come_one_after_the_other_and_are_those_of_every_head():
    figure = lens.draw_heads(
        {"layer": WEIGHTS}, LABELS, LABELS, marks=(pair for pair in [(0, 0), (3, 1)])
    )
    outlined = [len(axes.patches) + len(axes.collections) for axes in figure.axes[:2]]
    assert outlined[0] == outlined[1] > 0
