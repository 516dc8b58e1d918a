import io

from manyheads.cli import main
from manyheads.training import load


def test_each_text_gets_a_line(run, capsys):
    assert main(["generate", str(run), "abc", "dé"]) == 0
    assert capsys.readouterr().out.splitlines() == load(run).write(["abc", "dé"])


def test_without_the_cache_the_answers_are_the_same(run, capsys):
    main(["generate", str(run), "abc", "ddda"])
    cached = capsys.readouterr().out
    assert main(["generate", str(run), "abc", "ddda", "--no-cache"]) == 0
    assert capsys.readouterr().out == cached


def test_lines_of_stdin_are_answered(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("abc\n\ndé\n"))
    assert main(["generate", str(run)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_no_text_an_empty_text_and_unknown_letters_are_refused(run, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    for arguments, message in [
        ([], "generate must have a text to answer"),
        ([""], "texts must hold at least one character each"),
        (["a\udcff"], "texts must be UTF-8; got bytes that are not"),
        (["abz"], "unknown='z'"),
    ]:
        assert main(["generate", str(run), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_a_folder_without_a_model_is_refused_in_one_line(tmp_path, capsys):
    assert main(["generate", str(tmp_path), "a"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    assert main(["generate", str(tmp_path), "a"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_neither_a_folder_nor_a_model_is_refused(capsys):
    assert main(["generate"]) == 2
    assert (
        "generate must have the folder of a training run, or a --model" in capsys.readouterr().err
    )
