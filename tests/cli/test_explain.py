import pytest

from manyheads.cli import main


def explained(capsys, *arguments):
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_says_who_does_the_call(capsys):
    table = explained(capsys, "--batch", "2", "--kv-heads", "2", "--mask", "Causal() & Window(256)")
    assert "> blocks" in table
    assert "reference" in table


def test_what_rules_a_backend_out_is_told_with_its_cure(capsys):
    assert "faster, for fused: set dropout=0" in explained(capsys, "--dropout", "0.1")
    assert "leave softcap out" in explained(capsys, "--softcap", "30")
    assert "> fused" in explained(capsys, "--sinks")
    assert "detach the bias" in explained(capsys, "--bias", "--grad")


def test_any_length_can_be_asked_about_for_nothing_is_allocated(capsys):
    table = explained(capsys, "--q-len", "1000000", "--dtype", "bfloat16", "--mask", "Causal()")
    assert "> fused" in table
    assert "TB" in table


def test_masks_with_numbers_of_their_own_are_understood(capsys):
    table = explained(capsys, "--q-len", "8", "--mask", "Causal() & Documents((0,0,0,0,1,1,1,1))")
    assert "> fused" in table


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_a_backend_can_be_asked_for_by_name(capsys, backend):
    assert f"> {backend}" in explained(capsys, "--backend", backend)
