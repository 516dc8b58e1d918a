"""Hand-written attention is seen as it is, and stays as it is."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.probe.by_hand import STYLES, Attention, ByTorch, Einsum, OneByOne, Packed, Separate

import manyheads as mh
from manyheads.errors import ProbeError


def weights_of(calls: list, model: Attention) -> torch.Tensor:
    """All that was seen, in the form in which the model keeps its own."""
    found = torch.cat([call.weights().flatten(0, 1) for call in calls])
    return found.view_as(model.weights)


@pytest.fixture(params=STYLES, ids=lambda style: style.__name__)
def model(request) -> Attention:
    return request.param().eval()


def causal(length: int) -> torch.Tensor:
    return torch.ones(2, length, length, dtype=torch.int64).tril()


@pytest.mark.parametrize("length", [1, 2, 11])
@pytest.mark.parametrize("masked", [False, True])
def test_every_style_is_seen_and_not_changed(model, length, masked):
    if isinstance(model, Einsum) and length == 1:
        pytest.skip("torch's einsum over one key is no product of matrices; ends if it becomes one")
    x = torch.randn(2, length, 32)
    mask = causal(length) if masked else None
    plain = model(x, mask)
    with mh.probe.watch(model) as calls:
        assert model(x, mask).equal(plain)
    assert len(calls) == (8 if isinstance(model, OneByOne) else 1)
    torch.testing.assert_close(weights_of(calls, model), model.weights, rtol=0, atol=1e-6)


def test_a_row_filled_with_one_number_is_even_as_the_model_has_it():
    model, mask = Packed().eval(), causal(11)
    mask[1, 4] = 0
    with mh.probe.watch(model) as calls:
        model(torch.randn(2, 11, 32), mask)
    torch.testing.assert_close(calls[0].weights(), model.weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(calls[0].weights(4)[1], torch.full((4, 1, 11), 1 / 11))


LOW = -1e9
HIDING = {
    "another number": lambda s, a, b: s.masked_fill(a, -1e4).masked_fill(b, LOW),
    "the same, later first": lambda s, a, b: s.masked_fill(b, LOW).masked_fill(a, -1e4),
    "-inf": lambda s, a, b: s.masked_fill(b, -torch.inf).masked_fill(a & ~b, LOW),
    "what is added later": lambda s, a, b: s.masked_fill(a, -1e4) - 3.0 * b,
    "what was added before": lambda s, a, b: (s - 3.0 * b).masked_fill(a, LOW),
    "what is added alone": lambda s, a, b: s + LOW * a,
}


@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
def test_a_row_hidden_twice_has_the_weights_that_the_model_gives_it(hide):
    class Twice(torch.nn.Module):
        def forward(self, x, a, b):
            self.weights = hide(x @ x.mT, a, b).softmax(dim=-1)
            return self.weights @ x

    model, (a, b) = Twice(), torch.zeros(2, 8, 8, dtype=torch.bool)
    a[1], b[1, 4:] = True, True
    with mh.probe.watch(model) as calls:
        model(torch.randn(1, 1, 8, 4), a, b)
    torch.testing.assert_close(calls[0].weights(), model.weights, rtol=0, atol=1e-6)


UNTOLD = {
    "hidden by a fill and an added mask": lambda s, a: (s + LOW * a).masked_fill(~a, -1e4),
    "an unusual mul": lambda s, a: s.masked_fill(a, -2000.0) * 0.001,  # -2, which hides nothing
}


@pytest.mark.parametrize(("why", "hide"), UNTOLD.items(), ids=UNTOLD)
def test_scores_that_a_mask_does_not_surely_hide_are_refused(why, hide):
    class Unsure(torch.nn.Module):
        def forward(self, x, a):
            return hide(x @ x.mT, a).softmax(dim=-1) @ x

    a = torch.zeros(8, 8, dtype=torch.bool)
    a[1, 4:] = True
    with pytest.raises(ProbeError, match=why), mh.probe.watch(model := Unsure()):
        model(torch.randn(1, 1, 8, 4), a)


def test_statistics_of_what_was_seen_are_those_of_the_weights(model):
    with mh.probe.watch(model) as calls:
        model(torch.randn(2, 11, 32), causal(11))
    entropy = torch.cat([call.entropy().flatten(0, 1) for call in calls])
    right = torch.special.entr(model.weights).sum(dim=-1)
    torch.testing.assert_close(entropy.view_as(right), right, rtol=0, atol=1e-5)


def test_training_with_dropout_is_seen_before_dropout_and_not_changed(model):
    model.train()
    x = torch.randn(2, 11, 32)
    torch.manual_seed(7)
    plain = model(x, causal(11))
    torch.manual_seed(7)
    with mh.probe.watch(model) as calls:
        out = model(x, causal(11))
    assert out.equal(plain)
    torch.testing.assert_close(weights_of(calls, model), model.weights, rtol=0, atol=1e-6)


def test_gradients_do_not_change(model):
    x = torch.randn(2, 11, 32)
    gradients = []
    for watched in (False, True):
        model.zero_grad()
        if watched:
            with mh.probe.watch(model):
                model(x, causal(11)).square().sum().backward()
        else:
            model(x, causal(11)).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(a.equal(b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_dtype_is_seen(dtype):
    for style in (Separate, ByTorch):
        model = style().eval().to(dtype)
        with torch.inference_mode(), mh.probe.watch(model) as calls:
            model(torch.randn(2, 11, 32, dtype=dtype), causal(11))
        tolerance = 1e-10 if dtype == torch.float64 else 1e-2
        found = calls[0].weights().to(dtype)
        torch.testing.assert_close(found, model.weights, rtol=0, atol=tolerance)


def test_autocast_is_seen():
    model = Separate().eval()
    with torch.autocast("cpu", dtype=torch.bfloat16), mh.probe.watch(model) as calls:
        model(torch.randn(2, 11, 32))
    torch.testing.assert_close(calls[0].weights(), model.weights.float(), rtol=0, atol=1e-2)


def test_a_classifier_and_a_projection_without_bias_are_no_attention():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8, bias=False), torch.nn.Softmax(dim=-1), torch.nn.ReLU()
    )
    with (
        pytest.raises(mh.errors.ProbeError, match="at least one attention call; got none"),
        mh.probe.watch(model),
    ):
        model(torch.randn(2, 8))


class Gated(Separate):
    """Scores that no call of attention has: their absolute value."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        return self.attend((q @ k.mT).sigmoid(), v)


def test_unusual_steps_are_named_rather_than_guessed():
    model = Gated().eval()
    with (
        pytest.raises(mh.errors.ProbeError, match="softmax over what is no whole product"),
        mh.probe.watch(model),
    ):
        model(torch.randn(1, 5, 32))


class InPieces(Separate):
    """Scores cut before the softmax, as layers do that attend in chunks."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        return self.attend(torch.cat([(q @ k.mT)[..., :3], (q @ k.mT)[..., 3:]], dim=-1), v)


def test_what_is_not_seen_beside_what_is_gives_a_warning_that_names_it():
    model = torch.nn.Sequential(Separate(), InPieces()).eval()
    with (
        pytest.warns(mh.errors.ProbeWarning, match=r"saw 1 calls, but not each.*: 1 \(an unus"),
        mh.probe.watch(model) as calls,
    ):
        model(torch.randn(1, 5, 32))
    assert [call.where for call in calls] == ["0"]


class Late(Separate):
    """A softmax written out, divided by its sums after the values."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        exponentials = (q @ k.mT / 8**0.5).exp()
        return self.merge(exponentials @ v / exponentials.sum(dim=-1, keepdim=True))


def test_exponentials_that_nobody_has_made_weights_of_are_named():
    with (
        pytest.raises(mh.errors.ProbeError, match="exponentials that met values before their own"),
        mh.probe.watch(model := Late().eval()),
    ):
        model(torch.randn(1, 5, 32))
    with (
        pytest.warns(mh.errors.ProbeWarning, match=r"saw 1 calls, but not each.*: 1 \(exp\)"),
        mh.probe.watch(both := torch.nn.Sequential(Separate(), model).eval()),
    ):
        both(torch.randn(1, 5, 32))


class Talking(Separate):
    """Heads that are mixed once more after the softmax."""

    def attend(self, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.merge(F.conv2d(scores.softmax(dim=-1), torch.randn(4, 4, 1, 1)) @ v)


def test_weights_that_never_reach_values_are_named():
    with (
        pytest.raises(mh.errors.ProbeError, match="weights that went through convolution"),
        mh.probe.watch(model := Talking().eval()),
    ):
        model(torch.randn(1, 5, 32))


class Written(Separate):
    """A part of the scores written over."""

    def __init__(self, write: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.write = write

    def attend(self, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.write(scores)
        return super().attend(scores, v)


@pytest.mark.parametrize(
    "write",
    [
        lambda scores: scores[:, :, 1].fill_(-1.0),  # in a row that no check looks at
        lambda scores: scores[:, :, 1, 0].zero_(),
        lambda scores: scores[:, 1:2].mul_(2),
        lambda scores: scores.clamp_(max=0.1),
        lambda scores: scores.index_put_((torch.tensor([0]),), torch.tensor(0.5)),
        lambda scores: scores.copy_(scores.flip(-1)),
    ],
)
def test_scores_that_are_written_over_in_part_are_never_taken_for_what_they_were(write):
    with (
        pytest.raises(mh.errors.ProbeError, match="a softmax over what is no whole product"),
        mh.probe.watch(model := Written(write).eval()),
        torch.no_grad(),
    ):
        model(torch.randn(2, 12, 32))


def test_scores_are_lost_where_zeros_do_not_hide():
    class Zeroed(Separate):
        def attend(self, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(5, 5).tril()
            return super().attend(scores * mask + self.bias * (1 - mask), v)

    model = Zeroed().eval()
    for bias in (0.0, 3.0):
        model.bias = bias
        with (
            pytest.raises(mh.errors.ProbeError, match=r"scores went through an unusual add"),
            mh.probe.watch(model),
        ):
            model(torch.randn(1, 5, 32))


def test_scores_that_are_zeroed_and_left_so_are_not_understood():
    class Zeroed(Separate):
        def attend(self, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return super().attend(scores * torch.ones(5, 5).tril(), v)

    with (
        pytest.raises(mh.errors.ProbeError, match="multiplied by 0 must be hidden; got some"),
        mh.probe.watch(model := Zeroed().eval()),
    ):
        model(torch.randn(1, 5, 32))


def test_nothing_of_the_square_of_the_length_is_kept():
    model = Separate(num_heads=1).eval()
    with torch.no_grad(), mh.probe.watch(model, each=lambda call: call.entropy()) as found:
        model(torch.randn(1, 300, 32))
    assert [x.shape for x in found] == [(1, 1, 300)]
