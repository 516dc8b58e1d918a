"""The laws of backends: what `check_backend` holds any `Backend` to, against the reference."""

import dataclasses
from itertools import product
from typing import Any

import torch

from manyheads.errors import BackendError
from manyheads.functional import (
    BACKENDS,
    Backend,
    attention,
    attention_with_lse,
    attention_with_weights,
)
from manyheads.functional.call import Need
from manyheads.laws.calls import BIASES, BackendCase, draw, masks
from manyheads.laws.law import Suite, hold, require
from manyheads.laws.trial import Trial
from manyheads.positions import ALiBi, T5Bias

FRONT_DOORS: dict[Need, Any] = {
    "output": attention,
    "weights": attention_with_weights,
    "lse": attention_with_lse,
}


def odd_lengths(trial: Trial) -> None:
    """Lengths that no block divides, q_len and kv_len apart, give the reference's answer."""
    lengths = (1, 2, 7, 33, 65, 129) if trial.thorough else (1, 2, 7, 33, 65)
    for q_len, kv_len in product(lengths, lengths):
        for mask in ("none", "causal", "window"):
            trial.agree(q_len=q_len, kv_len=kv_len, mask=mask)


def every_mask(trial: Trial) -> None:
    """Every family of masks gives the reference's answer; rows, heads, samples may be empty."""
    sizes = ((7, 7), (5, 9), (9, 5), (33, 65)) if trial.thorough else ((7, 7), (5, 9), (9, 5))
    for q_len, kv_len in sizes:
        for mask in masks(trial.case):
            trial.agree(q_len=q_len, kv_len=kv_len, mask=mask)


def grouped_heads(trial: Trial) -> None:
    """Query head h reads kv head h // (num_heads // num_kv_heads)."""
    for num_heads, num_kv_heads in ((4, 2), (6, 3), (3, 1), (1, 1)):
        for mask in ("none", "causal padding", "heads of their own"):
            trial.agree(num_heads=num_heads, num_kv_heads=num_kv_heads, kv_len=9, mask=mask)


def odd_widths(trial: Trial) -> None:
    """Any head_dim and any value_dim will do, 1 and odd ones too."""
    for head_dim, value_dim in ((1, 1), (1, 5), (5, 3), (3, 17), (64, 64), (64, 33), (8, 128)):
        trial.agree(head_dim=head_dim, value_dim=value_dim, kv_len=9, mask="causal")


def every_dtype(trial: Trial) -> None:
    """In fp32, bf16 and fp16 outputs and gradients are as near the exact ones as the dtype is."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for mask in ("none", "causal", "global", "dense in four"):
            trial.agree(dtype=dtype, q_len=33, kv_len=65, head_dim=16, value_dim=16, mask=mask)
        trial.agree(dtype=dtype, mask="causal", bias="pairs", hidden=True)


def absent_tokens(trial: Trial) -> None:
    """Nothing of an absent token reaches an output or a gradient, NaN and inf included."""
    places = (("q_pos", (-1, 2, 5, -3, 6)), ("kv_pos", (-2, -1, 0, 1, 3, 5, -9)))
    positions = tuple((name, torch.tensor(at)) for name, at in places)
    for void in (float("nan"), float("inf")):
        for mask in ("padding", "causal padding", "no keys at all"):
            trial.agree(kv_len=9, mask=mask, void=void)
        for mask in ("none", "causal", "two-sided window", "future only", "causal padding"):
            trial.agree(q_len=5, kv_len=7, mask=mask, void=void, options=positions)
        trial.agree(q_len=9, kv_len=5, mask="causal", void=void)


def given_positions(trial: Trial) -> None:
    """Positions decide who sees whom, as a first position, a row, or a row a sequence."""
    ragged = torch.stack([torch.arange(7) + 3 * b for b in range(trial.case.batch)])
    for q_pos, kv_pos in ((4, 0), (0, 4), (-2, 0), (torch.arange(7).flip(0), 0), (ragged, ragged)):
        for mask in ("none", "causal", "window", "global"):
            options = (("q_pos", q_pos), ("kv_pos", kv_pos))
            trial.agree(mask=mask, options=options)


def every_bias(trial: Trial) -> None:
    """A bias is added to the scores, whichever axes it has, with -inf and whole rows of it."""
    for bias, hidden in product(BIASES, (False, True)):
        for mask in ("none", "causal", "dense in four"):
            trial.agree(kv_len=9, bias=bias, hidden=hidden, mask=mask)
    trial.agree(kv_len=9, num_kv_heads=2, bias="heads", grad=False)


def every_bias_that_reads_positions(trial: Trial) -> None:
    """A bias object is added as it would be written out, wherever queries and keys stand."""
    heads = trial.case.num_heads
    biases = (ALiBi(heads), T5Bias(heads, num_buckets=8).requires_grad_(False))
    ragged = torch.stack([torch.arange(9) + 3 * b for b in range(trial.case.batch)])
    places = ((4, 0), (torch.arange(7) + 2, 0), (ragged[:, 2:] - 4, ragged - 4))
    for bias, mask in product(biases, ("none", "causal", "window", "causal padding", "dense")):
        for q_len, kv_len in ((7, 7), (1, 9), (7, 9), (9, 5)):
            trial.agree(q_len=q_len, kv_len=kv_len, mask=mask, options=(("bias", bias),))
        for q_pos, kv_pos in places:
            options = (("bias", bias), ("q_pos", q_pos), ("kv_pos", kv_pos))
            trial.agree(kv_len=9, mask=mask, options=options)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        changes = {"head_dim": 16, "value_dim": 16, "num_kv_heads": 2, "mask": "causal"}
        trial.agree(q_len=65, kv_len=65, dtype=dtype, options=(("bias", biases[0]),), **changes)
    trial.agree(need="lse", grad=False, kv_len=9, mask="causal", options=(("bias", biases[0]),))


def every_score_change(trial: Trial) -> None:
    """Scale, softcap and sink logits act in the order of the contract."""
    sinks = torch.linspace(-2.0, 2.0, trial.case.num_heads)
    for options in (
        (("scale", 0.3),),
        (("scale", -2.0),),
        (("scale", 0.0),),
        (("softcap", 1.5),),
        (("sink_logits", sinks),),
        (("scale", 0.7), ("softcap", 2.0), ("sink_logits", sinks)),
    ):
        for mask, bias in (("none", None), ("causal", "pairs"), ("no keys at all", None)):
            trial.agree(kv_len=9, mask=mask, bias=bias, options=options)
        trial.agree(mask="causal", options=options)


WIDE: dict[str, Any] = {"q_len": 130, "kv_len": 260, "head_dim": 16}


def masks_over_several_blocks(trial: Trial) -> None:
    """Masks of each kind give the reference's answer where kernels work block by block."""
    for mask in ("none", "causal", "global", "documents", "heads of their own", "dense in four"):
        trial.agree(mask=mask, **WIDE)
    trial.agree(mask="causal padding", void=float("nan"), num_kv_heads=2, **WIDE)


def changes_over_several_blocks(trial: Trial) -> None:
    """Changes of scores, positions and log-sum-exp are right where kernels work block by block."""
    heads = trial.case.num_heads
    change = (("softcap", 3.0), ("sink_logits", torch.linspace(-2.0, 2.0, heads)))
    trial.agree(mask="causal", options=change, **WIDE)
    trial.agree(mask="causal", options=(("bias", ALiBi(heads)),), **WIDE)
    trial.agree(mask="none", bias="heads", hidden=True, value_dim=24, **WIDE)
    ragged = torch.stack([torch.arange(260) - 7 * b for b in range(trial.case.batch)])
    places = (("q_pos", ragged[:, 130:]), ("kv_pos", ragged))
    trial.agree(mask="window", options=places, **WIDE)
    trial.agree(mask="causal", need="lse", **(WIDE | {"q_len": 260, "kv_len": 130}))


def any_layout(trial: Trial) -> None:
    """Strided, reversed and expanded inputs give what contiguous ones give."""
    for layout in ("strided", "expanded"):
        for mask in ("none", "causal", "causal padding"):
            trial.agree(layout=layout, kv_len=9, mask=mask)
        trial.agree(layout=layout, kv_len=9, bias="pairs", num_kv_heads=2)


def nothing_at_all(trial: Trial) -> None:
    """No queries, no keys, no sequences, no values: the shapes are right and nothing is made up."""
    for nothing in ("q_len", "kv_len", "batch", "value_dim"):
        for mask in ("none", "causal", "padding"):
            trial.agree(mask=mask, **{nothing: 0})
    trial.agree(q_len=0, kv_len=0, mask="causal")


def weights_and_lse(trial: Trial) -> None:
    """Weights and log-sum-exp, where a backend gives them, are the reference's, empty rows too."""
    for need, grad in product(("weights", "lse"), (True, False)):
        for mask in ("none", "causal", "dense in four", "no keys at all"):
            trial.agree(need=need, grad=grad, kv_len=9, num_kv_heads=2, mask=mask)
        trial.agree(need=need, grad=grad, bias="pairs", hidden=True)
        trial.agree(need=need, grad=grad, q_len=9, kv_len=5, head_dim=5, value_dim=3, mask="causal")


def refuses_by_name(trial: Trial) -> None:
    """A call that it cannot do raises BackendError, with why and a cure; it is never answered."""
    sinks = torch.zeros(trial.case.num_heads)
    for options in ((("softcap", 1.5),), (("sink_logits", sinks),), (("dropout", 0.1),)):
        _require_refusal(trial, dataclasses.replace(trial.case, options=options))
    for need in ("weights", "lse"):
        _require_refusal(trial, dataclasses.replace(trial.case, need=need))
    for changes in ({"bias": "pairs"}, {"kv_len": 0}, {"q_len": 0}, {"batch": 0}):
        _require_refusal(trial, dataclasses.replace(trial.case, **changes))


def leaves_its_arguments_alone(trial: Trial) -> None:
    """A call changes none of the tensors that it is given."""
    for mask in ("causal padding", "dense in four"):
        case = dataclasses.replace(trial.case, kv_len=9, mask=mask, void=5.0, grad=False)
        inputs = draw(case)
        before = {name: tensor.clone() for name, tensor in inputs.tensors.items()}
        call = inputs.call(inputs.tensors)
        if next(trial.backend.refusals(call), None) is None:
            trial.backend.run(call)
        for name, tensor in before.items():
            require(torch.equal(tensor, inputs.tensors[name]), case, f"{name} was written to")


LAWS: Suite = (
    odd_lengths,
    every_mask,
    grouped_heads,
    odd_widths,
    every_dtype,
    absent_tokens,
    given_positions,
    every_bias,
    every_bias_that_reads_positions,
    every_score_change,
    any_layout,
    nothing_at_all,
    weights_and_lse,
    refuses_by_name,
    leaves_its_arguments_alone,
    masks_over_several_blocks,
    changes_over_several_blocks,
)

BRIEF: Suite = (masks_over_several_blocks, changes_over_several_blocks)
"""What is tried of a backend that compiles anew for every kind of call."""


def check_backend(
    backend: Backend | str,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    thorough: bool = False,
) -> None:
    """Hold a backend to the reference, in outputs and gradients.

    Args:
        backend: The backend, or the name of one in `BACKENDS`.
        device: Where it is tried.
        dtype: In which it is tried where a law names none; kernels for CUDA have no float64.
        seed: Seeds the numbers that are drawn.
        thorough: Try more lengths, and three seeds.

    Raises:
        LawBroken: If the backend breaks a law; the message names the law and the case.

    Example:
        >>> from manyheads.laws import check_backend
        >>> check_backend("fused")
    """
    if isinstance(backend, str):
        backend = BACKENDS[backend]
    for chosen in range(seed, seed + (3 if thorough else 1)):
        hold(LAWS, Trial(backend, BackendCase(device=device, dtype=dtype, seed=chosen), thorough))


def _require_refusal(trial: Trial, case: BackendCase) -> None:
    inputs = draw(case)
    call = inputs.call(inputs.tensors)
    refusals = list(trial.backend.refusals(call))
    for refusal in refusals:
        require(bool(refusal.why and refusal.cure), case, f"refuses without why or cure: {refusal}")
    if BACKENDS.get(trial.backend.name) is not trial.backend:
        return  # a stranger's has no name at the front door yet
    try:
        FRONT_DOORS[case.need](**inputs.tensors, **inputs.arguments, backend=trial.backend.name)
    except BackendError as error:
        require(bool(refusals), case, f"raised {error!r}, though nothing stands against the call")
    else:
        require(not refusals, case, f"answered, though it refuses: {refusals}")
