"""A trained model on disk: weights, config, vocabularies and task in one folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from manyheads.errors import CheckpointError, ManyheadsError
from manyheads.files import write_text
from manyheads.models import Transformer, TransformerConfig
from manyheads.tasks import Task, Vocabulary, find_task
from manyheads.tasks.vocabulary import PAD_ID
from manyheads.training.tensors import read_tensors, write_tensors
from manyheads.training.weights import load_weights

FORMAT = "manyheads-model-1"
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Trained:
    """A model together with the characters that its ids stand for.

    Args:
        model: The model.
        source_vocabulary: The characters it reads.
        target_vocabulary: The characters it writes.
        task_name: What it was trained on, a name in ``TASKS``.
        task_options: That task's options.
        max_new_tokens: The longest answer in tokens, its end included.
        report: How the training went: steps, exact match.
    """

    model: Transformer
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    task_name: str
    task_options: dict[str, Any]
    max_new_tokens: int
    report: dict[str, Any] = field(default_factory=dict)

    def task(self) -> Task:
        """Build the task that the model was trained on."""
        return find_task(self.task_name)(**self.task_options)

    def write(self, texts: Sequence[str], *, cached: bool = True) -> list[str]:
        """Write the model's answer to each text, the likeliest character at each step.

        Args:
            texts: In characters that the model was trained with.
            cached: Whether keys and values are kept between steps; the answers are the same.

        Raises:
            OptionError: If a character is unknown.
        """
        rows = [torch.tensor(self.source_vocabulary.encode(text)) for text in texts]
        if not rows:
            return []
        source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
        device = next(self.model.parameters()).device
        training = self.model.training
        self.model.eval()
        ids = self.model.generate(
            source.to(device), max_new_tokens=self.max_new_tokens, cached=cached
        )
        self.model.train(training)
        return [self.target_vocabulary.decode(row) for row in ids.tolist()]


def save(folder: str | Path, trained: Trained) -> None:
    """Save a trained model into a folder, as ``model.safetensors`` and ``config.json``.

    Tied weights are stored once. Everything needed to load stands in the header of the weights'
    file, which is put in place in one step: a run killed while it saves leaves the earlier model
    or the new one. ``config.json`` repeats it for people and other tools.
    """
    note = {
        "format": FORMAT,
        "model": asdict(trained.model.config),
        "task": {"name": trained.task_name, "options": trained.task_options},
        "source_characters": trained.source_vocabulary.characters,
        "target_characters": trained.target_vocabulary.characters,
        "max_new_tokens": trained.max_new_tokens,
        "report": trained.report,
    }
    write_tensors(Path(folder) / WEIGHTS, trained.model.state_dict(), note)
    text = json.dumps(note, ensure_ascii=False, indent=2) + "\n"
    write_text(Path(folder) / CONFIG, text)


def load(folder: str | Path) -> Trained:
    """Load what ``save`` saved; nothing in the folder can run code. The model is in eval mode.

    Raises:
        CheckpointError: If there is no model, or it is damaged or of another program.
    """
    path = Path(folder) / WEIGHTS
    tensors, note = read_tensors(path)
    if note.get("format") != FORMAT:
        raise CheckpointError(
            f"a trained model must be of the format {FORMAT}; got format={note.get('format')!r} "
            f"in {str(path)!r}. Pass a folder that manyheads.training.save wrote."
        )
    try:
        trained = Trained(
            Transformer(TransformerConfig(**note["model"])),
            Vocabulary(note["source_characters"]),
            Vocabulary(note["target_characters"]),
            note["task"]["name"],
            dict(note["task"]["options"]),
            int(note["max_new_tokens"]),
            dict(note["report"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        cause = str(error) if isinstance(error, ManyheadsError) else repr(error)
        raise CheckpointError(
            f"a trained model must describe itself in full; got path={str(path)!r} ({cause}). "
            "Copy it again, or train anew."
        ) from error
    load_weights(trained.model, tensors)
    trained.model.eval()
    return trained
