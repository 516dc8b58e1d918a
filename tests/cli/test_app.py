"""Whatever a person types, the command line answers in one line and the right exit code."""

import re
import subprocess
import sys

import pytest

from manyheads.cli import app as cli_app
from manyheads.cli import main
from manyheads.errors import CheckpointError

PROGRAM = [sys.executable, "-m", "manyheads"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], 'Unknown command "trian". Did you mean "train"?'),
        (["explain", "--headz", "3"], "Unknown option: --headz. Did you mean --heads?"),
        (["explain", "--heads", "x"], 'Invalid value for --heads: unable to convert "x" into int.'),
        (["explain", "--heads"], ".*--heads requires an argument."),
        (["explain", "--heads", "1", "--heads", "2"], ".*--heads specified multiple times."),
        (
            ["explain", "--dtype", "int8"],
            'Invalid value "int8" for --dtype. Choose from: "float32"',
        ),
        (["explain", "surplus"], r"Unused Tokens: \['surplus'\]."),
        (["look", "mask"], ".*Run: manyheads look mask --help"),
    ],
)
def test_a_wrong_word_gets_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.match(f"manyheads: {message}", captured.err)
    assert " Run: manyheads" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "--heads", "7", "--kv-heads", "2"], "num_heads=7, num_kv_heads=2"),
        (["explain", "--q-len", "0"], "--q-len must be an int of at least 1; got --q-len=0."),
        (["explain", "--mask", "Windw(3)"], r"got 'Windw\(3\)' in"),
        (["explain", "--backend", "fast"], "backend must be one of auto"),
        (["explain", "--device", "moon"], "--device must be one that torch can use here; got moon"),
        (["explain", "--dropout", "2"], "dropout"),
    ],
)
def test_a_mistake_that_the_library_finds_gets_one_line_too(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert re.search(message, captured.err)


def test_debug_shows_the_whole_traceback_also_of_python_m_manyheads():
    done = subprocess.run(
        [*PROGRAM, "--debug", "explain", "--q-len", "0"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "OptionError" in done.stderr


def failing(error):
    def command(*_):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "manyheads: stopped.\n"),
        (CheckpointError("two\nlines"), 2, "manyheads: two lines\n"),
        (FileNotFoundError(2, "No such file", "run/x"), 2, "manyheads: No such file: run/x.\n"),
        (OSError("no space"), 2, "manyheads: no space.\n"),
    ],
)
def test_each_kind_of_end_has_its_exit_code(error, code, line, monkeypatch, capsys):
    monkeypatch.setattr(cli_app, "app", failing(error))
    assert main(["info"]) == code
    assert capsys.readouterr().err == line


def test_a_bug_of_ours_is_not_hidden(monkeypatch):
    monkeypatch.setattr(cli_app, "app", failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_debug_after_two_dashes_is_a_text_and_no_option(monkeypatch):
    seen = []
    monkeypatch.setattr(cli_app, "app", seen.append)
    main(["--debug", "generate", "--", "--debug"])
    assert seen == [["generate", "--", "--debug"]]


def test_a_reader_who_leaves_early_gets_no_traceback():
    # Enough to overflow the pipe; the reader takes one line and goes.
    program = (
        "import sys; from manyheads.cli import app, main; "
        "app.app = lambda _: print('x' * 10_000_000); sys.exit(main(['info']))"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as writer:
        assert writer.stdout.read(1) == b"x"
        writer.stdout.close()
        assert writer.stderr.read() == b""
        assert writer.wait(timeout=120) == 1


@pytest.mark.parametrize("missing", ["cyclopts", "rich"])
def test_without_the_extra_one_line_says_how_to_install_it(missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["info"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("manyheads: The command line must have its extra; run: pip install")
    assert '"cyclopts>=5" "rich>=14"' in said and said.count("\n") == 1


def test_help_lists_every_command_and_version_is_the_packages(capsys):
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in cli_app.COMMANDS)
    assert "--debug" in listed
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == cli_app.__version__


@pytest.mark.parametrize("name", cli_app.COMMANDS)
def test_every_command_explains_its_options(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"manyheads {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "end"), [("smolm2", "Did you mean 'smollm2'?"), ("runs/none", "Name one of these.")]
)
def test_a_model_that_is_not_there_is_told_what_there_is(model, end, capsys):
    assert main(["look", model, "a text"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("manyheads: MODEL must be a folder that is there, smollm2, minilm")
    assert told.endswith(f"got {model!r}. {end}\n")


def test_a_warning_of_ours_is_a_line_without_our_code():
    arguments = ["look", "mask", "Causal() | Window(3)", "--length", "4"]
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("manyheads: `Causal() | Window(3)` lets queries see later keys")
