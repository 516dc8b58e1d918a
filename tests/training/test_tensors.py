import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from manyheads.errors import CheckpointError
from manyheads.training.state import SafeState, pack, read_state, unpack
from manyheads.training.tensors import read_tensors, write_tensors


def test_tied_tensors_are_stored_once_and_come_back_as_one(tmp_path: Path) -> None:
    tied, apart = torch.randn(3, 2), torch.ones(2)
    path = tmp_path / "t.safetensors"
    write_tensors(
        path, {"a": tied, "b": tied.view(3, 2), "c": apart, "d": apart.clone()}, {"x": [1]}
    )
    assert sorted(load_file(path)) == ["a", "c", "d"]
    tensors, note = read_tensors(path)
    assert note == {"x": [1]}
    assert tensors["a"] is tensors["b"]
    assert torch.equal(tensors["b"], tied)
    assert tensors["c"] is not tensors["d"]


def test_overlapping_views_are_stored_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"all": base, "head": base[:3], "turned": base.view(2, 3).t()}, {})
    tensors, _ = read_tensors(path)
    assert torch.equal(tensors["head"], base[:3])
    assert torch.equal(tensors["turned"], base.view(2, 3).t())


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    with pytest.raises(CheckpointError, match=r"must be a file; got path="):
        read_tensors(path)
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match=r"must be written by manyheads; got path=.*without"):
        read_tensors(path)
    save_file({"a": torch.ones(1)}, path, metadata={"manyheads": "{]"})
    with pytest.raises(CheckpointError, match=r"must be written by manyheads"):
        read_tensors(path)
    aliases = json.dumps({"note": {}, "aliases": {"b": "not there"}})
    save_file({"a": torch.ones(1)}, path, metadata={"manyheads": aliases})
    with pytest.raises(CheckpointError, match=r"must be written by manyheads"):
        read_tensors(path)


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_damaged_files_are_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.ones(9)}, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"must be a whole safetensors file; got path="):
        read_tensors(path)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("/nonexistent/bomb",)


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "resume.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="must be a whole safetensors file"):
        read_state(path)


def test_a_tree_comes_back_in_every_type() -> None:
    tree = {
        "a": [1, 2.5, float("inf"), None, True, "text"],
        0: {"exp_avg": torch.arange(3), "betas": (0.9, 0.98)},
        "tensor": {"dict": [["looks", "like"]]},
        "deep": ((), [], {}),
    }
    tensors: dict[str, torch.Tensor] = {}
    again = unpack(json.loads(json.dumps(pack(tree, tensors))), tensors)
    assert torch.equal(again[0].pop("exp_avg"), tree[0].pop("exp_avg"))  # type: ignore[index]
    assert again == tree
    assert isinstance(again[0]["betas"], tuple)


def test_what_could_only_be_stored_as_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"must be tensors, numbers, .* got type=Bomb\."):
        SafeState().save_checkpoint({"a": [Bomb()]}, tmp_path / "state")
    assert os.listdir(tmp_path) == []


def test_a_state_is_removed_without_complaint(tmp_path: Path) -> None:
    SafeState().save_checkpoint({"a": 1}, tmp_path / "state")
    assert SafeState().load_checkpoint(tmp_path / "state") == {"a": 1}
    SafeState().remove_checkpoint(tmp_path / "state")
    SafeState().remove_checkpoint(tmp_path / "state")
    assert os.listdir(tmp_path) == []


def test_a_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    write_tensors(tmp_path / "model.safetensors", {"weight": torch.zeros(2)}, {})
    assert (tmp_path / "model.safetensors").stat().st_mode == usual.stat().st_mode
