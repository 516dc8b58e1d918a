"""A folder that holds a trained model: one of ours, or one of Hugging Face."""

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from manyheads.errors import ExamineError
from manyheads.training import load

Example = tuple[tuple[Any, ...], dict[str, Any]]
ROWS, TOKENS = 2, 11


def load_folder(folder: Path) -> tuple[nn.Module, Example | None]:
    """The model in a folder, and an example of its input where its config tells one.

    Args:
        folder: What `manyheads.training.save` wrote, or a folder of Hugging Face with config.json
            and weights; nothing is downloaded and none of its own code is run.

    Raises:
        ExamineError: If a model of Hugging Face cannot be loaded.
        CheckpointError: If it holds no model of ours either.
    """
    config = folder / "config.json"
    told = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    if "architectures" in told:
        return _hugging_face(folder, told["architectures"][0])
    model = load(folder).model
    ids = model.config.source_vocab, model.config.target_vocab
    return model, (tuple(torch.randint(3, most, (ROWS, TOKENS)) for most in ids), {})


def _hugging_face(folder: Path, architecture: str) -> tuple[nn.Module, Example | None]:
    try:
        transformers = importlib.import_module("transformers")
        kind = getattr(transformers, architecture)
        model: nn.Module = kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ExamineError(
            f"folder must hold a model that transformers can load; got {str(folder)!r}, which "
            f"raised {type(error).__name__}: {error}. Is transformers installed? Else give "
            f"file.py:name with a factory that loads the model."
        ) from error
    settings = model.config
    words = getattr(settings, "vocab_size", None)
    if not isinstance(words, int) or getattr(model, "main_input_name", "") != "input_ids":
        return model, None
    ids = {"input_ids": torch.randint(min(3, words - 1), words, (ROWS, TOKENS))}
    if getattr(settings, "is_encoder_decoder", False):
        ids["decoder_input_ids"] = torch.randint(min(3, words - 1), words, (ROWS, TOKENS - 2))
    elif not getattr(settings, "is_decoder", False):
        ids["attention_mask"] = torch.ones(ROWS, TOKENS, dtype=torch.long)
    return model, ((), ids)
