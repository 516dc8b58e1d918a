import re

import pytest
import torch

import manyheads as mh
from manyheads.cli import main
from manyheads.models import PRESETS


def table(capsys, *arguments):
    assert main(["cache", *arguments]) == 0
    rows = {}
    for line in capsys.readouterr().out.splitlines():
        if found := re.match(r" *([\d,]+) +(.+?) {2,}(\S+ \S+) +(\S+ \S+) +(\S+) B +(\S+)%", line):
            tokens, name, *numbers = found.groups()
            rows[int(tokens.replace(",", "")), name] = numbers
    return rows


def test_llama_3_is_promised_a_gibibyte_for_each_8192_tokens(capsys):
    rows = table(capsys, "--model", "llama-3-8b", "--length", "8192", "--length", "16384")
    own = "GQA, this model"
    assert rows[8192, "MHA"] == ["4.00 GiB", "4.00 GiB", "524,288", "100.0"]
    assert rows[8192, own] == ["1.00 GiB", "1.00 GiB", "131,072", "25.0"]
    assert rows[16384, own][:2] == ["2.00 GiB", "2.00 GiB"]
    assert rows[8192, "MQA"][0] == "128.00 MiB"
    assert rows[8192, "MLA"][0] == "288.00 MiB"  # 576 numbers a token and layer, as DeepSeek-V2
    assert rows[8192, "GQA, int8"][0] == "512.00 MiB"
    assert rows[8192, "GQA, int4"][0] == "256.00 MiB"
    asked = [float(rows[8192, f"GQA, int{bits}"][1].split()[0]) for bits in (8, 4)]
    assert 512 < asked[0] < 560 and 256 < asked[1] < 300


def test_rows_and_bytes_of_a_number_multiply(capsys):
    options = ["--model", "gpt2", "--length", "1024", "--batch", "4", "--dtype", "float32"]
    rows = table(capsys, *options)
    assert rows[1024, "MHA, this model"][0] == "288.00 MiB"  # 2 * 12 * 768 * 4 * 1024 * 4
    assert not any(name.startswith("GQA") for _, name in rows)


def test_a_window_keeps_no_more_than_it_sees(capsys):
    rows = table(capsys, "--model", "mistral-7b", "--length", "16384")
    assert rows[16384, "GQA, window 4,096"][:2] == ["512.00 MiB", "512.00 MiB"]


@torch.no_grad()
@pytest.mark.parametrize("way", ["GQA, this model", "GQA, int8", "GQA, int4"])
def test_a_model_takes_what_was_asked(capsys, way):
    rows = table(capsys, "--model", "small", "--length", "333", "--dtype", "float32")
    kinds = {"int8": lambda: mh.QuantizedCache(8), "int4": lambda: mh.QuantizedCache(4)}
    decoder = mh.Decoder(PRESETS["small"]).eval()
    caches = decoder.new_caches(kinds.get(way[-4:], mh.GrowingCache))
    decoder(torch.zeros(1, 333, dtype=torch.long), caches=caches)
    taken = sum(cache.memory_bytes() for cache in caches)
    assert int(rows[333, way][2].replace(",", "")) == round(taken / 333)


def test_what_cannot_be_is_one_line(capsys):
    for arguments, message in [
        (["--model", "llama-3-9b"], "Did you mean 'llama-3-8b'?"),
        (["--model", "gpt2", "--length", "0"], "--length must be an int of at least 1"),
        (["--model", "gpt2", "--batch", "-1"], "--batch must be an int of at least 1"),
    ]:
        assert main(["cache", *arguments]) == 2
        told = capsys.readouterr().err
        assert message in told and told.count("\n") == 1
