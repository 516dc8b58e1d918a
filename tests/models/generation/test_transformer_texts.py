import dataclasses

import pytest
import torch
from tests.models.test_transformer import POSITIONS, SOURCE, model

import manyheads as mh
from manyheads.errors import OptionError
from manyheads.models import generate


def lively(**changes: object) -> mh.Transformer:
    """A model whose logits differ, so that its texts do not end at once."""
    transformer = model(tied="none", **changes)
    with torch.no_grad():
        transformer.output.weight.mul_(20)
        for parameter in transformer.decoder.parameters():
            parameter.mul_(1.5)
    return transformer


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 5.0])
def test_a_cache_changes_the_time_and_not_the_text(temperature: float, positions: str) -> None:
    transformer, texts = lively(positions=positions, num_kv_heads=2), []
    for cached in (True, False):
        draw = torch.Generator().manual_seed(3)
        options = {"max_new_tokens": 12, "temperature": temperature, "generator": draw}
        texts.append(transformer.generate(SOURCE, cached=cached, **options))
    assert torch.equal(*texts)
    assert texts[0].shape[1] > 1


@pytest.mark.parametrize("positions", POSITIONS)
def test_ragged_sources_give_the_texts_that_each_gives_alone(positions: str) -> None:
    transformer = lively(positions=positions)
    together = transformer.generate(SOURCE, max_new_tokens=8)
    for row, ids in enumerate(SOURCE):
        alone = transformer.generate(ids[ids != 0][None], max_new_tokens=8)[0]
        assert together[row, : len(alone)].tolist() == alone.tolist()
        assert together[row, len(alone) :].eq(0).all()


def test_after_its_end_a_row_is_padded_and_never_before() -> None:
    transformer, ended = lively(), 0
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        text = transformer.generate(SOURCE, max_new_tokens=9, temperature=9.0, generator=draw)
        for row in text.tolist():
            body = row[: row.index(2) + 1] if 2 in row else row
            assert 0 not in body
            assert set(row[len(body) :]) <= {0}
            ended += len(body) < 9
        assert text.shape[1] == 9 or text.ne(0)[:, -1].any(), "no longer than the longest"
    assert ended > 5


def test_greedy_text_is_the_likeliest_token_each_time() -> None:
    transformer = lively()
    text, written = transformer.generate(SOURCE[:1], max_new_tokens=5)[0].tolist(), [1]
    for token in text:
        logits = transformer(SOURCE[:1], torch.tensor([written]))[0, -1]
        logits[0] = -torch.inf
        assert token == int(logits.argmax())
        written.append(token)


def test_the_mode_and_the_generators_are_left_alone() -> None:
    transformer = mh.Transformer(dataclasses.replace(model().config, dropout=0.5))
    quiet = transformer.eval().generate(SOURCE, max_new_tokens=6)
    transformer.train()
    transformer.encoder[1].eval()
    modes = [module.training for module in transformer.modules()]
    before = torch.get_rng_state()
    text = transformer.generate(SOURCE, max_new_tokens=6)
    assert torch.equal(text, quiet), "nothing is dropped in training mode either"
    assert torch.equal(torch.get_rng_state(), before)
    draw = torch.Generator().manual_seed(0)
    transformer.generate(SOURCE, max_new_tokens=6, temperature=1.0, generator=draw)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in transformer.modules()] == modes
    with pytest.raises(OptionError):
        transformer.generate(SOURCE + 50, max_new_tokens=2)
    assert [module.training for module in transformer.modules()] == modes


def test_nothing_may_be_asked_for_and_of_nobody() -> None:
    transformer = lively()
    assert transformer.generate(SOURCE, max_new_tokens=0).shape == (3, 0)
    assert transformer.generate(SOURCE[:0], max_new_tokens=5).shape == (0, 0)
    assert not transformer.generate(SOURCE, max_new_tokens=2).requires_grad
    assert generate(transformer, SOURCE, max_new_tokens=2).dtype == torch.int64


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf"), True, "hot"])
def test_a_temperature_that_cannot_be_is_named(temperature: object) -> None:
    with pytest.raises(OptionError, match="temperature must be a finite number of at least 0"):
        model().generate(SOURCE, max_new_tokens=2, temperature=temperature)  # type: ignore[arg-type]


def test_too_long_a_text_is_refused_before_any_work() -> None:
    transformer = model(positions="learned", max_length=6)
    assert transformer.generate(SOURCE, max_new_tokens=6).shape[1] <= 6
    calls: list[object] = []
    transformer.encoder[0].register_forward_hook(lambda *inputs: calls.append(1))
    with pytest.raises(OptionError, match=r"max_new_tokens must be at most .* max_length=6; got"):
        transformer.generate(SOURCE, max_new_tokens=7)
    with pytest.raises(OptionError, match="max_new_tokens must be an int of at least 0"):
        transformer.generate(SOURCE, max_new_tokens=-1)
    with pytest.raises(mh.errors.PositionError, match="positions must stay below max_length=6"):
        transformer.generate(SOURCE.repeat(1, 2), max_new_tokens=2)
    assert calls == []
