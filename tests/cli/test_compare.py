import pytest

from manyheads.cli import main

SMALL = ["--length", "24", "--heads", "2", "--head-dim", "8", "--lengths", "16", "--lengths", "32"]


@pytest.mark.parametrize("method", ["linear", "performer", "lsh", "nystrom", "linformer"])
def test_every_method_gets_its_table_and_its_chart(capsys, method):
    assert main(["compare", method, *SMALL, "--landmarks", "8", "--bucket-size", "4"]) == 0
    told = capsys.readouterr().out
    assert f"{method}_attention beside attention, 24 queries and 24 keys" in told
    assert "of the weight" in told
    assert "█" in told
    assert "faster" in told


def test_one_bucket_of_lsh_is_off_by_nothing(capsys):
    assert main(["compare", "lsh", *SMALL, "--mask", "Causal()"]) == 0
    told = capsys.readouterr().out
    assert float(told.split("output off by")[1].split()[0]) < 1e-5


def test_the_picture_is_drawn_where_it_is_asked_for(capsys, tmp_path):
    out = tmp_path / "costs.png"
    assert main(["compare", "linear", *SMALL, "--out", str(out)]) == 0
    assert out.stat().st_size > 10_000
    assert f"drawn in {out}" in capsys.readouterr().out


def test_a_mask_that_the_method_cannot_take_is_one_line(capsys):
    assert main(["compare", "nystrom", *SMALL, "--mask", "Causal()"]) == 2
    assert "mask must be None or Padding(...)" in capsys.readouterr().err
