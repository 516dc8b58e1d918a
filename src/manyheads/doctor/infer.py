"""Facts that a model's names, its example call and its answer tell."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.facts import Facts, Slot
from manyheads.doctor.output import main_slot, part, weights_slot
from manyheads.errors import ExamineError

# What models call their arguments; the first that is given counts.
STREAMS = (
    "decoder_input_ids", "tgt", "target", "input_ids", "inputs_embeds", "hidden_states",
    "pixel_values", "x", "query", "Q", "q",
)  # fmt: skip
CONTEXTS = (
    "encoder_hidden_states", "context", "memory", "encoder_outputs", "src", "source", "key", "K",
    "k", "input_ids", "input_features",
)  # fmt: skip
VALUES = ("value", "V", "v", "values")
# And the value that marks what is real.
PADDINGS: dict[str, Any] = {
    "attention_mask": 1,
    "decoder_attention_mask": 1,
    "padding_mask": None,
    "key_padding_mask": False,
    "tgt_key_padding_mask": False,
    "src_key_padding_mask": False,
    "memory_key_padding_mask": False,
}
MASKS = ("mask", "attn_mask", "attention_mask", "src_mask", "tgt_mask", "bias_mask")
DOCUMENTS = ("document_ids", "documents", "segment_ids", "doc_ids", "seq_idx")
POSITIONS = ("position_ids", "positions", "pos_ids", "input_pos")


def infer_call(model: nn.Module, call: Call, declared: Facts) -> Facts:
    """What can be known of the arguments before the model has run."""
    x = declared.x if declared.x is not None else _stream(call)
    stream = call.get(x)
    if not isinstance(stream, Tensor) or stream.ndim < 2:
        given = ", ".join(f"{name}={_kind(value)}" for name, value in call.items()) or "nothing"
        takes = ", ".join(call.names) or "arguments without names"
        raise ExamineError(
            f"example input must hold a tensor (batch, length, ...); got {given}. The model takes "
            f"{takes}: give each that it needs to examine(model, ...), and name the one whose "
            f"tokens ask by Facts(x=...)."
        )
    if not stream.numel():
        raise ExamineError(
            f"example input must hold at least one row and one token; got {x}="
            f"{tuple(stream.shape)}. Give a few of each."
        )
    found = Facts(x=x, layout=_layout(model))
    context = _context(call, stream)
    value = _first(call, VALUES)
    if value is not None and (call.get(value) is stream or call.get(value) is call.get(context)):
        value = None
    found = replace(found, context=context, value=value)
    length = stream.shape[0 if (declared.layout or found.layout) == "length" else 1]
    return declared.or_else(replace(found, **_masks(call, stream, length, context)))


def infer_output(model: nn.Module, call: Call, output: Any, facts: Facts) -> Facts:
    """What can be known once the model has answered its example."""
    out = facts.out if facts.out is not None else main_slot(output)
    main = part(output, out)
    if not isinstance(main, Tensor) or not main.is_floating_point():
        raise ExamineError(
            f"output must hold a tensor of floats; got output={_kind(output)}. Say which part of "
            f"it to judge by Facts(out=...), an index or a name."
        )
    x, context = call.get(facts.x), call.get(facts.context)
    layout = facts.layout
    axes = (1, 0) if layout == "length" else (0, 1)
    if layout is None:
        alike = main.ndim >= 3 and x.ndim <= 3 and main.shape[:2] == x.shape[:2]
        layout = "batch" if alike else "pooled"
    q_len = x.shape[axes[1]]
    kv_len = context.shape[axes[1]] if isinstance(context, Tensor) and context.ndim > 1 else q_len
    found = Facts(
        out=out,
        layout=layout,
        weights=weights_slot(output, q_len, kv_len) or weights_slot(output, q_len, q_len),
        ordered=True if not x.is_floating_point() and x.ndim == 2 else None,
        fresh=_is_fresh(model) or None,
        **_sizes(model),
    )
    return facts.or_else(found)


def _stream(call: Call) -> Slot | None:
    # A target without a source is what a loss compares with, and no stream.
    alone = _first(call, ("src", "source", "memory")) is None
    named = _first(call, tuple(n for n in STREAMS if not (alone and n in ("tgt", "target"))))
    if named is not None:
        return named
    return next((name for name, value in call.tensors() if value.ndim >= 2), None)


def _context(call: Call, stream: Tensor) -> Slot | None:
    for name in CONTEXTS:
        value = call.get(name)
        if isinstance(value, Tensor) and value is not stream and value.ndim >= 2:
            return name
    return None


def _first(call: Call, names: tuple[str, ...]) -> Slot | None:
    return next((name for name in names if isinstance(call.get(name), Tensor)), None)


def _layout(model: nn.Module) -> Any:
    """ "length" for torch's own modules that were not told otherwise."""
    torchs = type(model).__module__.startswith("torch.nn.")
    firsts = [each.batch_first for each in model.modules() if hasattr(each, "batch_first")]
    return "length" if torchs and firsts and not firsts[0] else None


def _masks(call: Call, stream: Tensor, length: int, context: Slot | None) -> dict[str, Any]:
    """Arguments that say which tokens are real, or who sees whom."""
    found: dict[str, Any] = {}
    crossed = "decoder_input_ids" in dict(call.items())
    for name, real in PADDINGS.items():
        value = call.get(name)
        if not isinstance(value, Tensor) or value.ndim != 2 or value.is_floating_point():
            continue
        of_context = (
            name.startswith(("memory", "src")) and context in ("memory", "src")
        ) or name == "memory_key_padding_mask"
        of_context = of_context or (crossed and name == "attention_mask")
        if of_context:
            found.setdefault("context_padding", name)
        elif value.shape[1] == length and "padding" not in found:
            found["padding"] = name
        else:
            continue
        if real is not None:
            found.setdefault("real", bool(real) if value.dtype == torch.bool else real)
    for name in MASKS:
        value = call.get(name)
        if not isinstance(value, Tensor) or name == found.get("padding") or value.ndim < 2:
            continue
        square = value.shape[-1] == length and value.shape[-2] == length
        if square and (value.ndim > 2 or value.shape[0] != stream.shape[0] or "padding" in found):
            found |= {"mask": name, "seen": _seen(value)}
            break
    for fact, names in (("documents", DOCUMENTS), ("positions", POSITIONS)):
        found[fact] = _first(call, names)
    return found


def _seen(mask: Tensor) -> Any:
    """The value of a square mask that lets a token see itself, as causal masks show it."""
    own = set(mask.diagonal(dim1=-2, dim2=-1).flatten().tolist())
    ahead = set(mask[..., 0, -1].flatten().tolist())
    return own.pop() if len(own) == 1 and not own & ahead else None


def _is_fresh(model: nn.Module) -> bool:
    """Whether norms are still at their beginning: all gains 1, all shifts 0."""
    norms = [each for each in model.modules() if type(each).__name__.endswith("Norm")]
    gains: list[Any] = [
        each.weight for each in norms if isinstance(getattr(each, "weight", None), Tensor)
    ]
    shifts: list[Any] = [
        each.bias for each in norms if isinstance(getattr(each, "bias", None), Tensor)
    ]
    began = all(bool((gain == 1).all()) for gain in gains)
    return bool(gains) and began and not any(bool(shift.any()) for shift in shifts)


NUM_HEADS = ("num_heads", "n_head", "n_heads", "nhead", "num_attention_heads", "heads", "h")
NUM_KV_HEADS = ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "n_kv_head", "kv_heads")


def _sizes(model: nn.Module) -> dict[str, Any]:
    """Numbers of heads, from attributes of the modules or of a config."""
    holders = [getattr(model, "config", None), *model.modules()]
    return {
        "num_heads": _number(holders, NUM_HEADS),
        "num_kv_heads": _number(holders, NUM_KV_HEADS),
        "head_dim": _number(holders, ("head_dim", "d_k", "dim_head", "d_head")),
        "scale": _scale(getattr(model, "config", None)),
    }


def _scale(config: Any) -> float | None:
    said = getattr(config, "attention_multiplier", None)
    return said if isinstance(said, int | float) and said > 0 else None


def _number(holders: list[Any], names: tuple[str, ...]) -> int | None:
    values = (getattr(holder, name, None) for holder in holders for name in names)
    return next((each for each in values if type(each) is int and each > 0), None)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__
