"""The demo's parts on a model of two steps; `make demo` runs all of it."""

import re

import pytest
import torch

from manyheads.cli import demo as demo_module
from manyheads.cli import main
from manyheads.tasks import Dates
from manyheads.training import HeadMass, Recipe, train

TASK = Dates(locales=("zh", "ru"), train_size=64, validation_size=4, test_size=24)


@pytest.fixture(scope="module")
def trained():
    recipe = Recipe(steps=2, warmup=1, check_every=2, batch_size=8)
    return train(TASK, recipe, progress="none")


def test_the_demo_tells_what_it_reached_and_fails_where_that_is_too_little(
    trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(demo_module, "Dates", lambda: TASK)
    monkeypatch.setattr(demo_module, "train", lambda *_, **__: trained)
    assert main(["demo", "--out", str(tmp_path), "--threads", "1"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"of 24 texts of \d+ unseen dates are exactly right", out)
    assert "That is short of what it should be: 99.5% right, 0.85 a field." in out
    assert out.index("  year ") < out.index("  month ") < out.index("  day ")
    for field in ("year", "month", "day"):
        assert f"  {field:6}decoder.0.cross head " in out
    assert "with the cache" in out
    assert f'manyheads look {tmp_path} "May 4, 1979" --out date.html' in out
    assert (tmp_path / "heads.png").stat().st_size > 5000


def test_the_translations_shown_are_of_all_languages_first():
    shown = demo_module._one_of_each(Dates().split("test")[:300])
    assert len(shown) == 10
    assert len({example.kind.split()[0] for example in shown[:8]}) == 8
    assert len({example.kind for example in shown}) == 10


def test_of_heads_that_read_a_field_alike_each_field_gets_one_of_its_own():
    def heads(*masses):
        return [HeadMass("decoder.0.cross", head, mass) for head, mass in masses]

    best = demo_module.best_heads(
        {
            "year": heads((1, 0.99), (2, 0.98)),
            "month": heads((2, 0.90), (1, 0.86)),
            "day": heads((2, 0.998), (0, 0.996), (1, 0.95)),
        }
    )
    assert [head.head for head in best.values()] == [1, 2, 0]
    best = demo_module.best_heads(
        {"month": heads((2, 0.90), (1, 0.86)), "day": heads((2, 0.99), (0, 0.97))}
    )
    assert [head.head for head in best.values()] == [2, 2]  # the best, though it has a field


def test_the_heads_that_read_a_field_are_named_and_outlined(trained, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(demo_module, "draw_heads", lambda *args, **options: seen.update(options))
    example = next(example for example in TASK.split("test") if example.kind.startswith("zh"))
    monkeypatch.setattr(type(trained), "write", lambda *_, **__: [example.target])
    best = {
        "year": HeadMass("decoder.0.cross", 1, 0.9),
        "month": HeadMass("decoder.0.cross", 2, 0.9),
        "day": HeadMass("decoder.0.cross", 1, 0.9),
    }
    demo_module.draw_named_heads(trained, best, example, tmp_path / "heads.png")
    assert seen["names"] == {
        ("decoder.0.cross", 1): "head 1: year, day",
        ("decoder.0.cross", 2): "head 2: month",
    }
    month = seen["marks"]["decoder.0.cross", 2]
    assert {query for query, _ in month} == {5, 6}
    assert {key for _, key in month} == set(example.alignment[5])
    years_and_days = {query for query, _ in seen["marks"]["decoder.0.cross", 1]}
    assert years_and_days == {0, 1, 2, 3, 8, 9}


def test_marks_stay_within_an_answer_that_is_too_short(trained, tmp_path):
    example = TASK.split("test")[0]
    assert torch.is_grad_enabled()
    best = {"day": HeadMass("decoder.0.cross", 0, 0.5)}
    demo_module.draw_named_heads(trained, best, example, tmp_path / "heads.png")
    assert (tmp_path / "heads.png").exists()
