"""A trained model comes back as it was, or not at all."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from manyheads.errors import CheckpointError, OptionError
from manyheads.models import Transformer
from manyheads.tasks import Copy
from manyheads.training import Trained, load, load_weights, plain_names, save, small_config
from manyheads.training.tensors import write_tensors

TASK = Copy(letters="abc月", max_length=4)


def trained(**changes: object) -> Trained:
    config = replace(small_config(TASK), d_model=8, d_hidden=8, num_heads=2, **changes)  # type: ignore[arg-type]
    model = Transformer(config).eval()
    vocabulary = TASK.source_vocabulary
    return Trained(model, vocabulary, vocabulary, "copy", TASK.options(), 5, {"steps": 3})


def test_a_saved_model_comes_back(tmp_path: Path) -> None:
    first = trained(tied="none")
    save(tmp_path / "deep", first)
    again = load(tmp_path / "deep")
    assert again.task() == TASK
    assert (again.report, again.max_new_tokens) == ({"steps": 3}, 5)
    assert again.source_vocabulary == TASK.source_vocabulary
    assert not again.model.training
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)
    assert again.write(["ab月", "c"]) == first.write(["ab月", "c"])
    assert sorted(os.listdir(tmp_path / "deep")) == ["config.json", "model.safetensors"]


def test_the_config_is_readable_for_people(tmp_path: Path) -> None:
    save(tmp_path, trained())
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert "abc月" in text
    assert json.loads(text)["task"]["name"] == "copy"


def test_a_save_killed_halfway_leaves_the_earlier_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained()
    save(tmp_path, first)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, trained())
    again = load(tmp_path).model.state_dict()
    assert all(torch.equal(again[name], t) for name, t in first.model.state_dict().items())


def test_a_save_killed_between_its_two_files_leaves_the_new_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, trained())
    real, calls = os.replace, iter([True, False])

    def die(a: Path, b: Path) -> None:
        if not next(calls):
            raise KeyboardInterrupt
        real(a, b)

    wider = trained(num_decoder_layers=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, wider)
    assert load(tmp_path).model.config == wider.model.config


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    save(tmp_path, trained(tied="target"))
    stored = load_file(tmp_path / "model.safetensors")
    assert ("output.weight" in stored) + ("target_embedding.tokens.weight" in stored) == 1
    model = load(tmp_path).model
    assert model.output.weight is model.target_embedding.tokens.weight


@pytest.mark.parametrize("kept", ["output.weight", "target_embedding.tokens.weight"])
def test_either_name_of_a_tied_pair_is_enough(kept: str) -> None:
    source, fresh = trained(tied="target").model, trained(tied="target").model
    state = source.state_dict()
    other = ({"output.weight", "target_embedding.tokens.weight"} - {kept}).pop()
    del state[other]
    assert load_weights(fresh, state) == ()
    assert torch.equal(fresh.output.weight, source.output.weight)
    assert fresh.output.weight.data_ptr() == fresh.target_embedding.tokens.weight.data_ptr()


def test_equal_weights_of_an_untied_model_stay_apart(tmp_path: Path) -> None:
    tied, untied = trained(tied="target"), trained(tied="none")
    load_weights(untied.model, tied.model.state_dict())
    assert torch.equal(untied.model.output.weight, tied.model.output.weight)
    save(tmp_path, untied)
    assert len(load_file(tmp_path / "model.safetensors")) == len(untied.model.state_dict())
    again = load(tmp_path).model
    with torch.no_grad():
        again.output.weight.add_(1)
    assert not torch.equal(again.output.weight, again.target_embedding.tokens.weight)


def test_different_weights_are_not_tied_in_silence() -> None:
    state = trained(tied="none").model.state_dict()
    with pytest.raises(CheckpointError, match=r"that the model ties must be equal; got .*output"):
        load_weights(trained(tied="target").model, state)


def test_wrappers_names_are_taken_off_in_any_order() -> None:
    given = {
        "_orig_mod.module.layers.0.attn.q.weight": torch.zeros(1),
        "module._orig_mod.layers.1.attn.q.weight": torch.zeros(1),
        "layers.2._orig_mod.attn.q.weight": torch.zeros(1),
        "module_list.0.weight": torch.zeros(1),
        "head.module.weight": torch.zeros(1),
    }
    assert list(plain_names(given)) == [
        "layers.0.attn.q.weight",
        "layers.1.attn.q.weight",
        "layers.2.attn.q.weight",
        "module_list.0.weight",
        "head.module.weight",
    ]


def test_a_model_with_a_part_named_module_keeps_it() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    first, second = Wrapped(), Wrapped()
    load_weights(second, first.state_dict())
    assert torch.equal(first.module.weight, second.module.weight)


def test_two_names_that_become_one_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"must stay apart .* got name='module.a' twice"):
        plain_names({"a": torch.zeros(1), "module.a": torch.zeros(1)})


def test_weights_of_another_model_are_refused_before_any_is_touched() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    good = torch.ones(2, 2)
    cases = [
        ({"weight": good}, r"must have the names of the model; got missing=\['bias'\], unknown=\["),
        ({"weight": good, "bias": torch.ones(3)}, r"shapes of the model, bias \(2,\); got shape="),
        ({"weight": good, "bias": good[0], "x": good}, r"unknown=\['x'\]\. Build the model"),
    ]
    for weights, message in cases:
        with pytest.raises(CheckpointError, match=message):
            load_weights(model, weights)
    assert torch.equal(model.weight, before)


def test_lax_loading_needs_one_match_at_least_and_names_the_rest() -> None:
    model = nn.Linear(2, 2)
    assert load_weights(model, {"weight": torch.ones(2, 2), "x": torch.ones(1)}, strict=False) == (
        "bias",
    )
    with pytest.raises(CheckpointError, match=r"missing=\['bias', 'weight'\], unknown=\['x'\]"):
        load_weights(model, {"x": torch.ones(1)}, strict=False)


def test_files_of_others_are_read_without_running_them(tmp_path: Path) -> None:
    model, weights = nn.Linear(2, 2), nn.Linear(2, 2).state_dict()
    torch.save(weights, tmp_path / "w.pt")
    save_file(weights, tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        load_weights(model, tmp_path / name)
        assert torch.equal(model.weight, weights["weight"])
    torch.save(model, tmp_path / "code.pt")
    with pytest.raises(CheckpointError, match=r"read without running code; got path=.*code\.pt"):
        load_weights(model, tmp_path / "code.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match=r"must be tensors by name; got path="):
        load_weights(model, tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match=r"got path=.*nowhere\.pt' \(FileNotFoundError\)"):
        load_weights(model, tmp_path / "nowhere.pt")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"must be a file; got path=.*model\.safetensors'"):
        load(tmp_path)


def test_a_model_that_does_not_describe_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"a": torch.ones(1)}, {"format": "manyheads-resume-1"})
    with pytest.raises(CheckpointError, match=r"of the format manyheads-model-1; got format="):
        load(tmp_path)
    write_tensors(path, {"a": torch.ones(1)}, {"format": "manyheads-model-1"})
    with pytest.raises(CheckpointError, match=r"must describe itself in full; got path=.*'model'"):
        load(tmp_path)


def test_a_model_from_a_task_unknown_here_loads_but_names_the_task(tmp_path: Path) -> None:
    save(tmp_path, replace(trained(), task_name="poems"))
    with pytest.raises(OptionError, match=r"task must be one of .*; got task='poems'"):
        load(tmp_path).task()


def test_writing_leaves_the_mode_alone_and_an_unknown_character_is_named() -> None:
    model = trained()
    model.model.train()
    assert model.write([]) == []
    assert len(model.write(["ab", "月"], cached=False)) == 2
    assert model.model.training
    with pytest.raises(OptionError, match=r"got unknown='z' in text='az'\."):
        model.write(["az"])
