"""A monitor is silent over a healthy run, and names what goes wrong in a sick one."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import manyheads as mh
from manyheads.doctor import Alarm, Monitor, monitor
from manyheads.errors import OptionError


class Writer(nn.Module):
    """Predicts the token before each; parts can be spoiled."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 32)
        self.attention = mh.MultiHeadAttention(32, 4)
        self.head = nn.Linear(32, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(tokens) + self.attention(self.embed(tokens)))
        return out


def trained(
    model: nn.Module, watched: Monitor, steps: int, spoil: Callable[[int], None] = lambda step: None
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(0)
    for step in range(steps):
        spoil(step)
        tokens = torch.randint(11, (4, 9), generator=draw)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        watched.step(loss)
        optimizer.step()


def watch(model: nn.Module, **options: float) -> tuple[Monitor, list[Alarm]]:
    heard: list[Alarm] = []
    return monitor(model, every=2, tell=heard.append, **options), heard  # type: ignore[arg-type]


@pytest.fixture
def writer() -> Writer:
    torch.manual_seed(0)
    return Writer()


def test_a_healthy_run_is_told_nothing_and_is_not_changed(writer: Writer) -> None:
    torch.manual_seed(0)
    twin = Writer()
    watched, heard = watch(writer, guess=math.log(11))
    with watched:
        trained(writer, watched, 20)
    trained(twin, monitor(nn.Linear(1, 1)), 20)
    assert heard == watched.alarms == []
    assert all(map(torch.equal, writer.state_dict().values(), twin.state_dict().values()))
    assert {each.where for each in watched.vitals} == {"attention"}
    assert watched.gradients["attention.q_proj.weight"] > 0


def test_a_closed_monitor_leaves_no_hook(writer: Writer) -> None:
    with monitor(writer):
        assert writer._forward_hooks
    assert not writer._forward_hooks
    assert not writer._forward_pre_hooks


def test_nan_is_told_at_once_with_the_part_that_gave_it_first(writer: Writer) -> None:
    def spoil(step: int) -> None:
        if step == 4:
            writer.attention.out_proj.register_forward_hook(lambda *_: _[2] / 0.0)

    watched, heard = watch(writer)
    trained(writer, watched, 6, spoil)
    assert [(each.code, each.step) for each in heard] == [("nan_origin", 5)]
    assert heard[0].where == "attention.out_proj"
    assert str(heard[0]) == (
        "step 5, nan_origin: attention.out_proj: nan is the loss; this part gave the first number "
        "that is not finite; a healthy model shows finite numbers. Look at the named part: a "
        "softmax over a row that is all -inf, a division by zero, an exponential or a dtype that "
        "overflows."
    )
    assert repr(watched) == "Monitor(Writer, every=2, step 6: nan_origin)"
    assert repr(watched.alarms) == "[Alarm(step 5, nan_origin: attention.out_proj)]"


def test_an_update_that_left_nan_in_the_weights_is_told_with_its_own_cure(writer: Writer) -> None:
    def spoil(step: int) -> None:
        if step == 3:
            with torch.no_grad():
                for weight in (writer.head.weight, writer.head.bias):
                    weight.fill_(torch.nan)

    watched, heard = watch(writer)
    trained(writer, watched, 4, spoil)
    assert [(each.code, each.step) for each in heard] == [("nan_origin", 4)]
    assert heard[0].where == "head.weight (one of 2 parameters)"
    assert heard[0].unit == "is the loss, and an update had left numbers there that are not finite"
    assert heard[0].cure.startswith("Lower the learning rate, clip gradients")


def test_a_loss_that_is_nan_by_itself_is_told_so(writer: Writer) -> None:
    watched, heard = watch(writer)
    writer(torch.randint(11, (2, 5)))
    watched.step(math.nan)
    assert heard[0].where == "the loss"
    assert heard[0].unit == "is the loss, and no part of the model gave it"
    assert heard[0].cure.startswith("Look at how the loss is made of the output")


def test_dead_and_copied_heads_are_told_once_each(writer: Writer) -> None:
    def spoil(step: int) -> None:
        with torch.no_grad():
            writer.attention.v_proj.weight[8:16] = 0
            for projection in (writer.attention.q_proj, writer.attention.k_proj):
                projection.weight[24:] = projection.weight[16:24]
                if projection.bias is not None:
                    projection.bias[24:] = projection.bias[16:24]
            if writer.attention.v_proj.bias is not None:
                writer.attention.v_proj.bias[8:16] = 0

    watched, heard = watch(writer)
    trained(writer, watched, 8, spoil)
    assert sorted(each.code for each in heard) == ["dead_heads", "redundant_heads"]
    assert "head 1" in next(each.where for each in heard if each.code == "dead_heads")


def test_the_same_disease_in_several_layers_is_one_alarm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 32), *(mh.MultiHeadAttention(32, 4) for _ in range(3)))
    model.append(nn.Linear(32, 11))

    def spoil(step: int) -> None:
        with torch.no_grad():
            for layer in (model[1], model[2], model[3]):
                for weight in layer.v_proj.parameters():
                    weight[:8] = 0

    watched, heard = watch(model)
    trained(model, watched, 8, spoil)
    assert [each.code for each in heard] == ["dead_heads"]
    assert heard[0].where == "1, head 0 and 2 other places"
    assert "1 head gives nothing; a healthy model shows none. Look for values" in str(heard[0])


def test_heads_that_all_look_at_one_key_are_collapsed_and_not_only_saturated() -> None:
    class Pulled(Writer):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            x = torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:]], dim=-1)
            x[:, 4, 0] = 1
            out: Tensor = self.head(x + self.attention(x))
            return out

    torch.manual_seed(0)
    model = Pulled()

    def spoil(step: int) -> None:
        with torch.no_grad():
            model.attention.q_proj.weight.zero_()
            model.attention.k_proj.weight.zero_()
            model.attention.k_proj.weight[:, 0] = 1.0
            pull = torch.tensor([10.0, 11.0, 12.0, 13.0]) / 8**0.5  # scores of the fourth key
            model.attention.q_proj.bias.copy_(pull.repeat_interleave(8))

    watched, heard = watch(model)
    trained(model, watched, 6, spoil)
    assert [(each.code, each.where) for each in heard] == [("collapsed", "most heads")]
    assert "1 of all heads have all queries at one key, which is not the first" in str(heard[0])


def test_saturated_heads_are_told(writer: Writer) -> None:
    with torch.no_grad():
        writer.attention.q_proj.weight.mul_(1e4)
    watched, heard = watch(writer)
    trained(writer, watched, 4)
    assert "saturated" in {each.code for each in heard}


def test_a_projection_without_gradient_is_told(writer: Writer) -> None:
    writer.attention.q_proj.weight.register_hook(torch.zeros_like)
    watched, heard = watch(writer)
    trained(writer, watched, 4)
    assert [(each.code, each.where) for each in heard] == [
        ("gradient_dead", "attention.q_proj.weight")
    ]


def test_a_loss_that_stays_at_guessing_is_told(writer: Writer) -> None:
    watched, heard = watch(writer, guess=math.log(11))
    for _ in range(20):
        watched.step(2.5)
    assert [each.code for each in heard] == ["loss_at_guessing"]


def test_a_loss_that_falls_towards_guessing_is_no_alarm(writer: Writer) -> None:
    watched, heard = watch(writer, guess=math.log(11))
    for step in range(20):
        watched.step(3.3 * 0.99**step)
    assert heard == []


def test_a_first_loss_far_above_guessing_is_told_at_once(writer: Writer) -> None:
    watched, heard = watch(writer, guess=math.log(11))
    watched.step(40.0)
    assert [each.code for each in heard] == ["init_loss"]


def test_a_monitor_that_never_looks_is_refused(writer: Writer) -> None:
    with pytest.raises(OptionError, match="every must be at least 1, in steps; got every=0"):
        monitor(writer, every=0)


def test_what_is_no_module_cannot_be_watched() -> None:
    with pytest.raises(OptionError, match=r"must be a torch\.nn\.Module; got model=None"):
        mh.doctor.monitor(None)  # type: ignore[arg-type]
