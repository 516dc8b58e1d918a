"""What the heads of any model did with a text, run for ``manyheads look``."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.cli.heads import look_at
from manyheads.cli.target import guessed, inputs_of, load
from manyheads.errors import ManyheadsError, MissingExtraError, OptionError, nearest
from manyheads.interop.packages import MINILM, find_file
from manyheads.lens import Portrait, of_weights, portray
from manyheads.probe import AttentionCall, watch

_PACKAGES = {"minilm": ("MiniLM", MINILM)}
"""Packages of weights that have a short name: how a reader calls them, and the index."""


@dataclass(frozen=True)
class Seen:
    """Portraits of all layers, with what stands beside their rows and columns.

    Args:
        portraits: A layer each, in the order in which they ran.
        queries: The texts of each layer's queries.
        keys: Of its keys.
        lines: What to say above the table: what was read, and written.
    """

    portraits: list[Portrait]
    queries: dict[str, list[str]]
    keys: dict[str, list[str]]
    lines: tuple[str, ...]

    def crosses(self, layer: str) -> bool:
        """Whether the queries of a layer are of another text than its keys."""
        return self.queries[layer] != self.keys[layer]


def see(model: str, text: str | None, inputs: Sequence[str] = ()) -> Seen:
    """Run a model and see all of its heads.

    Args:
        model: The folder of a training run or of a Hugging Face model, "smollm2", "minilm" or
            the name of another installed package of weights, or ``file.py:name``.
        text: What it reads; None leaves a ``file.py:name`` to its example.
        inputs: For a ``file.py:name``, shapes or names instead of a text; see `inputs_of`.

    Raises:
        OptionError: If there is no such model, or no text where one is needed.
    """
    if model == "smollm2":
        return _of_smollm2(_given(text))
    if Path(model).is_dir():
        family = _config(Path(model)).get("model_type")
        return _of_run(model, _given(text)) if family is None else _of_folder(model, _given(text))
    if ":" in model:
        return _of_target(model, text, list(inputs))
    if (folder := _of_package(model)) is not None:
        return _of_folder(str(folder), _given(text))
    raise OptionError(
        f"MODEL must be a folder that is there, smollm2, minilm, another installed package of "
        f"weights, or file.py:name; got {model!r}. "
        f"{nearest(model, ('smollm2', *_PACKAGES), 'Name one of these.')}"
    )


def _given(text: str | None) -> str:
    if not text:
        raise OptionError(
            f"text must hold at least one character; got {text!r}. Give a text to read."
        )
    return text


def _of_package(model: str) -> Path | None:
    """The folder in which an installed package keeps a Hugging Face model; None if it has none."""
    if model in _PACKAGES:
        return find_file(*_PACKAGES[model], ".safetensors").parent
    try:
        return find_file(model, model, ".safetensors").parent
    except MissingExtraError:
        return None


def _config(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "config.json").read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def _of_run(folder: str, text: str) -> Seen:
    from manyheads.training import load as load_run

    sight = look_at(load_run(folder), text)
    portraits = [
        portray(of_weights(weights[None]), layer=name) for name, weights in sight.weights.items()
    ]
    lines = (f"read     {text}", f"written  {sight.answer}")
    return Seen(portraits, sight.queries, sight.keys, lines)


def _of_smollm2(text: str) -> Seen:
    from manyheads.interop.smollm2 import SmolLM2

    model = SmolLM2.load()
    ids = torch.tensor([model.tokenizer.encode(text, add_special_tokens=False).ids])
    names = [model.tokenizer.decode([each]) for each in ids[0].tolist()]
    return _watched(model.decoder, lambda: model.decoder(ids), ids[0], names, f"read  {text}")


def _of_folder(folder: str, text: str) -> Seen:
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise MissingExtraError(
            "A model of Hugging Face must have transformers to run; got none. Run: pip install "
            "transformers"
        ) from error
    disable_progress_bar()
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(text, return_tensors="pt")
    ids = encoded["input_ids"]
    names = [str(tokenizer.decode([each])) for each in ids[0].tolist()]
    if model.config.is_encoder_decoder:
        encoded["decoder_input_ids"] = ids  # the text on both sides
    return _watched(model, lambda: model(**encoded), ids[0], names, f"read  {text}")


def _of_target(target: str, text: str | None, inputs: list[str]) -> Seen:
    model, example, source = load(target)
    torch.manual_seed(0)
    if text is not None:
        if not hasattr(source, "encode"):
            raise OptionError(
                f"text must be encoded before the model of {target} can read it; got no function "
                f"encode in its file. Write def encode(text) there, which gives ids, or leave the "
                f"text out."
            )
        try:
            encoded = torch.as_tensor(source.encode(_given(text)))
        except ManyheadsError:
            raise
        except Exception as error:
            raise OptionError(
                f"text must be one that encode in the file of {target} takes; got "
                f"{type(error).__name__}: {error}. Give another text, or mend encode."
            ) from error
        example = (encoded if encoded.ndim > 1 else encoded[None],), {}
    elif inputs:
        example = inputs_of(inputs, source)
    args, kwargs = guessed(model) if example is None else example
    ids = next((x[0] for x in args if isinstance(x, Tensor) and _are_ids(x)), None)
    names = None if ids is None else [str(each) for each in ids.tolist()]
    if text is not None and names is not None and len(names) == len(text):
        names = list(text)
    said = "an example of its input" if text is None else text

    def run() -> None:
        try:
            model(*args, **kwargs)
        except ManyheadsError:
            raise
        except Exception as error:
            raise OptionError(
                f"the model of {target} must take what it is given; got {type(error).__name__}: "
                f"{error}. Say --inputs, or mend encode."
            ) from error

    return _watched(model.eval(), run, ids, names, f"read  {said}")


def _are_ids(x: Tensor) -> bool:
    return x.ndim == 2 and not x.dtype.is_floating_point and x.dtype != torch.bool


def _watched(
    model: nn.Module,
    run: Callable[[], Any],
    ids: Tensor | None,
    names: list[str] | None,
    *lines: str,
) -> Seen:
    with torch.no_grad(), watch(model, each=partial(_portrait, ids)) as portraits:
        run()
    portraits = _named_apart(portraits)
    queries, keys = (
        {each.layer: _labels(names, each.lengths[side]) for each in portraits} for side in (0, 1)
    )
    return Seen(portraits, queries, keys, lines)


def _portrait(ids: Tensor | None, call: AttentionCall) -> Portrait:
    lengths = call.call.q.shape[2], call.call.k.shape[2]
    fits = ids is not None and lengths == (len(ids), len(ids))
    return portray(call, ids if fits else None)


def _named_apart(portraits: list[Portrait]) -> list[Portrait]:
    """Layers that ran more than once get the number of the run."""
    met: dict[str, int] = {}
    named = []
    for each in portraits:
        met[each.layer] = met.get(each.layer, 0) + 1
        again = met[each.layer]
        named.append(each if again == 1 else replace(each, layer=f"{each.layer} ({again})"))
    return named


def _labels(names: list[str] | None, length: int) -> list[str]:
    if names is not None and len(names) == length:
        return names
    return [str(place) for place in range(length)]
