"""The doctor at the command line: exit code 0 healthy, 1 findings, 2 could not examine."""

import json
import re
from dataclasses import replace

import pytest
import torch

from manyheads.cli import main
from manyheads.doctor import CHECKS
from manyheads.models import Transformer
from manyheads.tasks import Copy
from manyheads.training import Trained, save, small_config

FILE = """
import torch
from torch import nn
import manyheads as mh


class Leaky(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x, padding_mask=None):
        return self.mix(x) + x.roll(-1, dims=1)


def healthy():
    return mh.EncoderLayer(8, 2, 16)


def with_example():
    return mh.MultiHeadAttention(8, 2), (torch.randn(2, 5, 8),), {"mask": mh.Causal()}


def raises():
    raise ValueError("no weights today")


class Turned(nn.Module):
    def __init__(self, pairs):
        super().__init__()
        torch.manual_seed(1)
        self.layer = mh.MultiHeadAttention(16, 2, rotary=mh.Rotary(8, pairs=pairs))

    def forward(self, x):
        return self.layer(x, mask=mh.Causal())


def halves():
    return Turned("halves")


def neighbours():
    return Turned("interleaved"), (torch.randn(2, 9, 16),)


class Crossed(torch.nn.Module):
    def forward(self, x: torch.Tensor, context, *, padding_mask, positions=None):
        return x


leaky = Leaky()
number = 3
example = (torch.randn(2, 6, 8),)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["{}:healthy"],
        ["{}:healthy", "--inputs", "2x7x8"],
        ["{}:with_example"],
        ["{}:healthy", "--inputs", "example"],
    ],
)
def test_a_healthy_model_ends_with_0(file, arguments, capsys):
    assert main(["doctor", *(each.format(file) for each in arguments)]) == 0
    assert "nothing found" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["leaky", "Leaky"])
def test_findings_end_with_1_and_are_written_as_json_too(file, name, tmp_path, capsys):
    out = tmp_path / "report.json"
    arguments = ["--fact", "causal=True", "--inputs", "2x9x8", "--json", str(out)]
    assert main(["doctor", f"{file}:{name}", *arguments]) == 1
    printed = capsys.readouterr().out
    assert "error future_leak" in printed
    assert "manyheads doctor --explain future_leak" in printed
    report = json.loads(out.read_text())
    assert report["findings"][0]["code"] == "future_leak"
    assert report["healthy"] is False
    assert set(report["verdicts"]) == {check.code for check in CHECKS}


def test_a_report_is_written_as_a_page_too(file, tmp_path):
    page = tmp_path / "report.html"
    arguments = ["--fact", "causal=True", "--inputs", "2x9x8", "--html", str(page)]
    assert main(["doctor", f"{file}:leaky", *arguments]) == 1
    assert "future_leak" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}:leaky", "--html", "report.txt"], "path must end in one of .html"),
        (["{}:raises", "--json", "nowhere/a.json"], "path must lie in a folder that exists"),
        (["{}:raises"], "raised ValueError: no weights today"),
        (["{}:nobody"], "which .*models.py does not have. It has .*healthy"),
        (["{}:number"], "must be a torch.nn.Module or a factory of one; got number=int"),
        (["{}"], "target must be file.py:name"),
        (["nowhere.py:model"], "must be a file that can be run"),
        (["{}:leaky", "--inputs", "2x9x7"], "model must answer its example input"),
        (
            ["{}:Crossed", "--inputs", "2x9x8"],
            re.escape(
                "--inputs must give what forward(x, context, *, padding_mask, positions=None) "
                "needs; got x (missing a required argument: 'context'). Write --inputs x=2x9x8 "
                "context=2x9x8 padding_mask=2x9:2, for one; a name in the file gives any other "
                "value, such as a mask of bools."
            ),
        ),
        (
            ["{}:Crossed", "--inputs", "2x9:4", "2x5:7", "2x2", "2x2"],
            r"got x, context, padding_mask, positions \(too many positional arguments\)",
        ),
        (["{}:healthy", "--fact", "padding=typo"], "padding must name an argument of the model"),
        (["{}:healthy", "--fact", "casual=True"], "Did you mean 'causal'?"),
        (["{}:leaky", "--inputs", "some"], "--inputs must be a shape such as 2x13x24"),
        (["{}:leaky", "--inputs", "0x9x8"], "--inputs must be a shape such as 2x13x24"),
        (["{}:leaky", "--inputs", "2x9:0"], "--inputs must be a shape such as 2x13x24"),
        (["{}:leaky", "--inputs", "9999999x9999999x9999"], "--inputs must fit into memory"),
        (["{}:leaky", "--fact", "causal=maybe"], "causal must be one of True, False, 'prefix'"),
        (["{}:leaky", "--fact", "colour=red"], "--fact must be name=value with a name of causal"),
        (["{}:leaky", "--fact", "reference={}:nobody"], "got 'nobody', which .*does not have"),
        ([], "target must be file.py:name; got target=None"),
        (["--explain", "xyz"], "of .*future_leak.*; got code='xyz'. --list explains each."),
        (["--explain", "future_leek"], "code='future_leek'. Did you mean 'future_leak'"),
    ],
)
def test_what_cannot_be_examined_ends_with_2(file, arguments, message, capsys):
    assert main(["doctor", *(each.format(file) for each in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert re.search(message, captured.err)


def test_every_check_is_listed_and_can_be_explained(capsys):
    assert main(["doctor", "--list"]) == 0
    listed = capsys.readouterr().out
    for check in CHECKS:
        assert check.code in listed
        assert main(["doctor", "--explain", check.code]) == 0
        told = capsys.readouterr().out
        assert check.explanation in told and check.cure in told


def test_arguments_can_be_given_by_name(file, capsys):
    inputs = ["--inputs", "2x9x8", "padding_mask=2x9:2"]
    facts = ["--fact", "causal=True", "--fact", "padding=padding_mask", "--fact", "real=1"]
    assert main(["doctor", f"{file}:leaky", *inputs, *facts]) == 1
    assert "mask_lost" in capsys.readouterr().out


def test_a_reference_is_named_as_the_model_is(file, capsys):
    assert main(["doctor", f"{file}:neighbours", "--fact", f"reference={file}:halves"]) == 1
    assert "error rope_pairs_mixed: layer.q_proj.weight" in capsys.readouterr().out


def test_a_folder_of_ours_is_examined(tmp_path, capsys):
    torch.manual_seed(0)
    task = Copy(letters="abcdef", max_length=6)
    model = Transformer(replace(small_config(task), d_model=16, d_hidden=16, num_heads=2))
    words = task.source_vocabulary
    save(tmp_path, Trained(model, words, words, "copy", task.options(), 5))
    assert main(["doctor", str(tmp_path)]) == 0
    assert "Transformer" in capsys.readouterr().out


def test_a_folder_of_hugging_face_is_examined(tmp_path, capsys):
    transformers = pytest.importorskip("transformers", reason="until transformers is installed")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    assert main(["doctor", str(tmp_path), "--json", str(tmp_path / "report.json")]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["model"] == "GPT2LMHeadModel"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"architectures": ["NobodysModel"]}', "folder must hold a model that transformers can"),
        ("{}", "folder"),
    ],
)
def test_a_folder_without_a_model_ends_with_2(tmp_path, config, message, capsys):
    (tmp_path / "config.json").write_text(config)
    assert main(["doctor", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err
