"""Any module can be brought; none is changed; what cannot be examined is told why."""

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy
import pytest
import torch
from tests.museum.exhibit import LENGTH, WIDTH, WORDS, ids, stream
from tests.museum.layers import HiddenPast
from tests.museum.masks import Shifted, style
from tests.museum.styles import Block, Cross, Fused, Matmul, Writer
from torch import Tensor, nn

import manyheads as mh
from manyheads.doctor import CHECKS, Facts, Sign, examine
from manyheads.doctor.patient import Patient
from manyheads.errors import ExamineError


def leaky() -> nn.Module:
    return style(Matmul, Shifted, causal=True)()


def test_a_finding_names_the_disease_the_place_the_evidence_and_the_cure() -> None:
    model = Writer(Fused(True), leaky())
    (found,) = examine(model, ids(), facts=Facts(causal=True)).findings
    assert found.code == "future_leak"
    assert found.severity == "error"
    assert found.where.startswith("layers.1.attention (ShiftedMatmul), output 0 reads input 1")
    assert found.number > 0
    assert found.expected == "none"
    assert "mask" in found.cure
    assert found.link == "docs/doctor.md#future_leak"


def test_causes_come_before_their_symptoms() -> None:
    class Inverted(Fused):
        def hidden(self, q_len: int, kv_len: int) -> Tensor:
            return torch.ones(q_len, kv_len, dtype=torch.bool).tril(-1)

    report = examine(Inverted(True), stream(), facts=Facts(causal=True))
    assert report.codes == ("mask_inverted",)
    assert "future_leak" in report.findings[0].symptoms
    assert report.verdict("future_leak").says == "fail"


def test_layers_that_show_the_same_are_one_finding_with_their_places() -> None:
    class Unscaled(Fused):
        def scale(self, q: Tensor) -> float:
            return 1.0

    report = examine(Writer(*(Unscaled(True) for _ in range(5))), ids(), facts=Facts(causal=True))
    assert report.codes == ("scale_missing",)
    places = [f"layers.{layer}.attention" for layer in range(3)]
    assert report.findings[0].where == f"{'; '.join(places)} and 2 more"


def test_a_query_that_sees_no_key_is_named_where_nan_comes_of_it() -> None:
    (found,) = examine(HiddenPast(), stream()).findings
    assert found.code == "nan_origin"
    assert found.cure.startswith(
        "Query 10 of layers.0.self_attn sees no key: is its mask the wrong way round?"
    )


def test_causality_is_inferred_from_a_faulty_model_too() -> None:
    assert examine(leaky(), stream()).codes == ("future_leak",)
    assert examine(Fused(True), stream()).facts.causal is True
    assert examine(Fused(), stream()).facts.causal is False


def test_a_check_that_lacks_a_fact_says_which() -> None:
    verdict = examine(Fused(), stream()).verdict("window_off_by_one")
    assert verdict.says == "cannot tell"
    assert verdict.reason.endswith("declare Facts(window=...)")


def test_the_smallest_leak_is_seen() -> None:
    class Whisper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Fused(True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x) + 1e-9 * x.roll(-1, dims=1)

    report = examine(Whisper(), stream(), facts=Facts(causal=True))
    assert report.codes == ("future_leak",)
    assert report.findings[0].number < 1e-7


def test_examining_leaves_everything_bit_identical() -> None:
    model = nn.Sequential(Block(Matmul(dropout=0.3), 0.1), nn.BatchNorm1d(LENGTH)).train()
    model[0].eval()
    calls: list[str] = []
    model.register_forward_hook(lambda *_: calls.append("user"))
    model(stream()).sum().backward()
    before = copy.deepcopy(model.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    hooks = len(model._forward_hooks)
    torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
    x = stream()
    given = x.clone()

    examine(model, x)

    drawn = (torch.rand(1).item(), random.random(), numpy.random.rand())
    torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
    assert drawn == (torch.rand(1).item(), random.random(), numpy.random.rand())
    assert torch.equal(x, given)
    assert model.training and not model[0].training
    assert len(model._forward_hooks) == hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for weight, grad in zip(model.parameters(), grads, strict=True):
        assert grad is None if weight.grad is None else torch.equal(weight.grad, grad)
    assert torch.is_grad_enabled()


class Writes(nn.Module):
    """Writes into its input, its buffer and itself, in eval too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = Fused(), 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        return self.layer(x.mul_(2))


def test_what_a_model_writes_is_as_it_was_before() -> None:
    model, x = Writes(), stream()
    report = examine(model, x)
    assert torch.equal(x, stream())
    assert (model.calls, model.seen.item()) == (0, 0)
    # Each question found the input that it was asked.
    assert report.findings == ()


def test_a_cache_in_the_example_is_not_filled() -> None:
    layer, cache = mh.MultiHeadAttention(WIDTH, 4), mh.GrowingCache()
    report = examine(layer, stream(), mask=mh.Causal(), cache=cache)
    assert report.healthy, str(report)
    assert report.facts.causal is True
    assert cache.length == 0


def test_frozen_weights_and_mixed_modes_stay_as_they_are() -> None:
    model = Block(Fused(), dropout=0.1)
    model.attention.requires_grad_(False)
    model.feed_forward.eval()
    modes = [each.training for each in model.modules()]
    examine(model, stream())
    assert [each.training for each in model.modules()] == modes
    assert not any(weight.requires_grad for weight in model.attention.parameters())
    assert all(weight.requires_grad for weight in model.feed_forward.parameters())


def test_a_finding_that_does_not_repeat_is_none() -> None:
    asked: list[int] = []

    def once(patient: Patient) -> Iterator[Sign]:
        asked.append(patient.seed)
        if patient.seed == 0:
            yield Sign("here", 1.0, "of one input", "none")

    check = replace(CHECKS[0], look=once)
    assert examine(Fused(), stream(), checks=[check]).verdict(check.code).says == "pass"
    assert asked == [0, 1]


def test_two_examinations_say_the_same() -> None:
    first, second = (examine(copy.deepcopy(MODEL), stream()).to_json() for _ in range(2))
    assert first == second


MODEL = Block(leaky())


class Answer(dict):  # type: ignore[type-arg]
    pass


class Speaks(nn.Module):
    """Answers in the shape that it is told."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.shape, self.layer = shape, leaky()

    def forward(self, x: Tensor) -> object:
        out = self.layer(x)
        return {
            "tuple": (out, {"more": 1}),
            "list": [out],
            "dict": {"logits": out, "loss": None},
            "nested": Answer(scores=torch.zeros(3, dtype=torch.long), output=out),
            "second": ("text", out),
        }[self.shape]


@pytest.mark.parametrize("shape", ["tuple", "list", "dict", "nested", "second"])
def test_outputs_of_every_shape_are_read(shape: str) -> None:
    assert examine(Speaks(shape), stream(), facts=Facts(causal=True)).codes == ("future_leak",)


def test_outputs_of_hugging_face_are_read() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=1, n_head=4)
    report = examine(transformers.GPT2LMHeadModel(config), input_ids=ids())
    assert report.healthy and report.facts.causal is True and report.facts.out == "logits"


def test_a_model_without_attention_is_healthy() -> None:
    report = examine(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()), stream())
    assert report.findings == ()
    assert report.facts.causal is None


def test_a_compiled_model_is_examined_as_what_was_compiled() -> None:
    report = examine(torch.compile(leaky()), stream(), facts=Facts(causal=True))
    assert report.model == "ShiftedMatmul"
    assert report.codes == ("future_leak",)


def test_shared_weights_stay_shared() -> None:
    model = Writer(Fused(True))
    model.head.weight = model.embed.weight
    report = examine(model, ids(), facts=Facts(fresh=False))
    assert report.findings == ()
    assert model.head.weight is model.embed.weight


def test_a_module_that_kept_a_part_of_its_last_graph_can_be_examined() -> None:
    model = Matmul()
    model.last = model(stream())
    assert examine(model, stream()).healthy


def test_a_quantised_model_is_examined_as_it_is() -> None:
    with pytest.warns(Warning):
        model = torch.ao.quantization.quantize_dynamic(Fused(), {nn.Linear}, dtype=torch.qint8)
    report = examine(model, stream())
    # Dynamic quantisation takes one scale for a whole batch, so that rows do reach one another.
    assert report.codes[0] == "batch_mixing"
    assert report.findings[0].where.startswith("w_q (Linear)")
    assert report.findings[0].number < 0.05


class ForGPUs(nn.Module):
    """Code that insists on its device."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cuda":
            raise RuntimeError("this kernel is for CUDA only")
        return x


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (Fused(), (), "example input must hold a tensor .*; got nothing. The model takes x, "),
        (Fused(), (3,), "got x=int. The model takes x, padding_mask"),
        (Fused(), (torch.randn(5),), r"got x=float32 \(5,\)"),
        (Fused(), (torch.randn(2, 5, 7),), "model must answer its example input; got RuntimeError"),
        (Writer(Fused()), (torch.randn(2, 5),), "It takes input_ids, attention_mask"),
        (nn.Embedding(4, 4), (torch.full((2, 3), 9),), "got IndexError"),
        (
            Cross(),
            (torch.randn(2, 5, WIDTH),),
            "It takes x, context, padding_mask, and was given x: give",
        ),
        (torch.relu, (torch.randn(2, 3),), "model must be a torch.nn.Module; got model="),
    ],
)
def test_what_cannot_be_examined_is_told_why(model, args, message) -> None:
    with pytest.raises(ExamineError, match=message):
        examine(model, *args)


def test_code_for_a_gpu_is_told_that_models_are_examined_on_the_cpu() -> None:
    message = r"got .*CUDA.*examined on the CPU, and its code wants a GPU: give a variant for"
    with pytest.raises(ExamineError, match=message):
        examine(ForGPUs(), torch.randn(2, 5, 4))


class OnlyIds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


def test_an_output_without_floats_is_refused() -> None:
    with pytest.raises(ExamineError, match=r"must hold a tensor of floats; got output=int64"):
        examine(OnlyIds(), stream())


class Uncopyable(Fused):
    def __deepcopy__(self, memo: object) -> None:
        raise TypeError("there is only one of me")


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(ExamineError, match=r"copy.deepcopy can copy.*there is only one of me"):
        examine(Uncopyable(), stream())


def test_codes_are_a_vocabulary() -> None:
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes)
    assert all(code.isidentifier() and code == code.lower() for code in codes)
    known = set(codes)
    for check in CHECKS:
        assert set(check.symptoms) <= known, check.code


def test_a_layer_of_ours_is_healthy_through_the_front_door() -> None:
    assert mh.doctor.examine(mh.MultiHeadAttention(16, 4), torch.randn(2, 5, 16)).findings == ()


class Experts(nn.Module):
    """Each token goes to one of eight experts, of whom some get none."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(WIDTH, 8)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.route(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            if (mine := chosen == index).any():
                out[mine] = expert(x[mine]) * share[mine][:, None]
        return out


def test_a_mixture_of_experts_is_no_patient() -> None:
    assert examine(Experts(), stream(), facts=Facts(causal=False)).healthy


class Bag(nn.Module):
    """The mean of word vectors: no attention, and no order that could be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.embed(input_ids).mean(dim=1))


@pytest.mark.parametrize("model", [Bag(), nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 8))])
def test_models_that_do_not_attend_are_not_blamed_for_knowing_no_order(model: nn.Module) -> None:
    report = examine(model, ids())
    assert report.healthy, str(report)
    assert report.verdict("no_position").says == "cannot tell"


class WithLoss(Writer):
    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return logits, nn.functional.cross_entropy(logits.mT, target)


def test_a_target_without_a_source_is_not_taken_for_the_stream() -> None:
    report = examine(WithLoss(Fused(True)), ids(), ids())
    assert report.facts.x == "x"
    assert report.healthy, str(report)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [1, 2])
def test_short_examples_raise_no_false_alarm(length: int, batch: int) -> None:
    x = stream(length, batch)
    layer = mh.MultiHeadAttention(WIDTH, 4)
    torchs = nn.TransformerEncoderLayer(WIDTH, 4, 32)
    for model, args in ((Fused(True), (x,)), (layer, (x, stream(3, batch))), (torchs, (x,))):
        report = examine(model, *args)
        assert report.healthy, str(report)
        raised = [verdict for verdict in report.verdicts if "the model raised" in verdict.reason]
        assert raised == []


def test_facts_of_another_kind_and_words_that_are_none_are_refused() -> None:
    with pytest.raises(ExamineError, match="facts must be Facts; got facts=dict"):
        examine(leaky(), stream(), facts={"causal": True})  # type: ignore[arg-type]
    with pytest.raises(ExamineError, match="layout must be one of 'batch', 'length', 'pooled'"):
        Facts(layout="rows")  # type: ignore[arg-type]


@pytest.mark.parametrize("empty", [(slice(0), slice(None)), (slice(None), slice(0))])
def test_an_example_without_rows_or_tokens_is_refused(empty: tuple[slice, slice]) -> None:
    with pytest.raises(ExamineError, match="must hold at least one row and one token; got"):
        examine(leaky(), stream()[empty])


def test_weights_without_numbers_are_refused() -> None:
    with pytest.raises(ExamineError, match="must hold numbers; got weights on the meta device"):
        examine(leaky().to("meta"), stream().to("meta"))


def test_inference_mode_around_an_examination_is_no_disease() -> None:
    with torch.inference_mode():
        report = examine(Matmul(False), stream())
        assert torch.is_inference_mode_enabled()
    assert report.codes == ()


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_a_model_that_gives_up_midway_is_told_or_left_undecided(calls: int) -> None:
    class GivesUp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.left = Writer(Fused(True)), [calls]

        def forward(self, words: Tensor) -> Tensor:
            self.left[0] -= 1
            if self.left[0] < 0:
                raise KeyError("no more")
            answer: Tensor = self.inner(words)
            return answer

    if calls == 1:
        with pytest.raises(ExamineError, match="must answer its example input; got KeyError"):
            examine(GivesUp(), ids())
        return
    report = examine(GivesUp(), ids())
    assert not report.findings
    assert any("no more" in verdict.reason for verdict in report.verdicts)


class Pooled(nn.Module):
    """An encoder that answers with one token of each row."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x, key_padding_mask):
        out, _ = self.attention(x, x, x, key_padding_mask=key_padding_mask, need_weights=False)
        return (x + out)[:, self.token]


@pytest.mark.parametrize("token", [0, -1])
def test_pooling_a_token_that_padding_may_hide_on_one_side_is_no_leak(token):
    nobody = torch.zeros(2, 9, dtype=torch.bool)
    report = mh.doctor.examine(Pooled(token), torch.randn(2, 9, 16), nobody)
    assert "padding_leak" not in report.codes


class Decaying(nn.Module):
    """Causal sigmoid attention, whose weights sum to more the later a token stands."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / 4
        return scores.sigmoid().tril() @ self.v(x)


def test_weights_that_do_not_sum_to_one_are_no_turned_values():
    report = mh.doctor.examine(Decaying(), torch.randn(2, 9, 16), facts=Facts(causal=True))
    assert "rope_on_values" not in report.codes


@dataclass
class Logits:
    """What a model of today hands back."""

    logits: Tensor


class Answering(nn.Module):
    """A healthy model whose answer is a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return Logits(self.inner(x))


def test_parameters_that_a_dataclass_answers_for_are_used():
    report = mh.doctor.examine(Answering(), torch.randn(2, 9, 16))
    assert report.codes == ()


def test_an_example_on_the_meta_device_is_refused():
    with pytest.raises(ExamineError, match="example input must hold numbers; got a tensor on the"):
        mh.doctor.examine(nn.Linear(16, 16), torch.randn(2, 9, 16, device="meta"))


def test_a_copy_that_computes_with_the_original_is_refused_and_leaves_it_no_gradient():
    class Bound(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.call = lambda x: self.inner(x)

        def forward(self, x):
            return self.call(x)

    model = Bound()
    with pytest.raises(
        ExamineError, match=r"^model must be whole .* computes with inner\.weight of"
    ):
        examine(model, torch.randn(2, 5, 8))
    assert all(each.grad is None for each in model.parameters())
