import pytest
import torch

from manyheads.cli import main
from manyheads.cli.heads import look_at
from manyheads.training import load


def test_every_head_has_a_line_in_the_table_and_a_map_in_the_picture(run, tmp_path, capsys):
    picture = tmp_path / "heads.png"
    assert main(["look", str(run), "abcé", "--out", str(picture)]) == 0
    out = capsys.readouterr().out
    for attention in ("encoder.0", "decoder.0.self", "decoder.0.cross"):
        lines = [line for line in out.splitlines() if line.startswith(attention)]
        assert len(lines) == 2
    assert out.splitlines()[0] == "read     abcé"
    assert out.splitlines()[1].startswith("written  ")
    assert picture.stat().st_size > 5000


def test_each_row_is_named_after_what_it_writes_and_each_column_after_what_it_reads(run):
    sight = look_at(load(run), "abc")
    written = [*sight.answer, "</s>"]
    assert sight.queries["decoder.0.cross"] == sight.queries["decoder.0.self"] == written
    assert sight.keys["decoder.0.cross"] == sight.keys["encoder.0"] == ["a", "b", "c"]
    assert sight.keys["decoder.0.self"] == ["<s>", *sight.answer]
    for name, weights in sight.weights.items():
        shape = (2, len(sight.queries[name]), len(sight.keys[name]))
        assert weights.shape == shape
        torch.testing.assert_close(weights.sum(-1), torch.ones(shape[:2]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "text must hold at least one character"),
        (["abz"], "unknown='z'"),
        (["abc", "--out", "heads.doc"], "path must end in one of"),
        (["abc", "--out", "nowhere/heads.png"], "path must lie in a folder that exists"),
    ],
)
def test_what_cannot_be_seen_or_drawn_is_refused_before_anything_is_printed(
    run, arguments, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["look", str(run), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
