"""A model of the same weights whose answers are right tells what else is wrong."""

import pytest
import torch
from tests.museum import places
from torch import Tensor, nn

import manyheads as mh
from manyheads.doctor import Facts, examine
from manyheads.interop.huggingface import from_huggingface

IDS = torch.randint(0, 40, (2, 11), generator=torch.Generator().manual_seed(0))


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="until transformers is installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=2, intermediate_size=48,
    )  # fmt: skip
    made: nn.Module = transformers.LlamaForCausalLM(config)
    return made


def test_our_model_of_their_weights_answers_as_theirs() -> None:
    theirs = llama()
    report = examine(from_huggingface(theirs), IDS, facts=Facts(reference=theirs))
    assert report.verdict("rope_pairs_mixed").says == "pass"
    assert report.known["reference"] == "LlamaForCausalLM"
    assert report.healthy, str(report)


def test_their_weights_in_interleaved_pairs_are_told() -> None:
    theirs = llama()
    ours = from_huggingface(theirs)
    for part in ours.modules():
        if isinstance(part, mh.Rotary):
            part.pairs = "interleaved"
    report = examine(ours, IDS, facts=Facts(reference=theirs))
    assert report.codes == ("rope_pairs_mixed",)
    assert report.findings[0].unit.endswith("once the weights' pairs are neighbours")
    assert "q_proj" in report.findings[0].where


class Other(nn.Module):
    """Answers in a way of its own."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "raises":
            raise ValueError("not today")
        return x[:, 1:] if self.what == "shorter" else 2 * x


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raises", "the reference raised ValueError: not today"),
        ("shorter", "the reference answers in another shape"),
        ("doubles", "whatever the order of pairs: something else is not the same"),
    ],
)
def test_what_cannot_be_compared_is_told_why(what: str, reason: str) -> None:
    layer = mh.MultiHeadAttention(16, 2, rotary=mh.Rotary(8))
    report = examine(layer, torch.randn(2, 9, 16), facts=Facts(reference=Other(what)))
    verdict = report.verdict("rope_pairs_mixed")
    assert verdict.says == "cannot tell" and reason in verdict.reason


def test_a_model_that_names_no_queries_cannot_be_laid_out_anew() -> None:
    bare = nn.Sequential(nn.Linear(16, 16))
    report = examine(
        bare, torch.randn(2, 9, 16), facts=Facts(reference=Other("doubles"), head_dim=8)
    )
    assert "names no weights of queries and keys" in report.verdict("rope_pairs_mixed").reason


def test_features_that_rotary_leaves_alone_keep_their_order() -> None:
    broken = next(each for each in places.BROKEN if each.name == "neighbours-partly")
    (found,) = examine(broken.build(), *broken.args, facts=broken.facts).findings
    assert found.unit.endswith("are neighbours in the 4 of 6 features that rotary turns")
