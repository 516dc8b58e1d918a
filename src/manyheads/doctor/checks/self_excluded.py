"""A causal mask that hides a token from itself."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.attentions import attentions
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.inside import observed
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """The second token of a strict mask sees the first alone, so that nothing of it is left."""
    if patient.facts.causal is not True:
        raise CannotTell("the model is not causal")
    for name, part in attentions(patient):
        if not part.has_tokens or part.length < 3 or part.facts.context is not None:
            continue
        seen = part.influence > 0
        if seen[1, 0] and not seen[1, 1] and not seen[1, 2:].any():
            yield Sign(f"{name}, token 1", 0, "of its output depends on itself", "all of it")
        else:
            yield from _behind_sinks(name, part)


def _behind_sinks(name: str, part: Patient) -> Iterator[Sign]:
    """Where keys of nobody stand before the others, a triangle may begin one too early."""
    try:
        calls = observed(part)
    except CannotTell:
        return
    for each in calls:
        seen = each.seen.weights() > 0
        more = seen.shape[-1] - seen.shape[-2]
        steps = seen.sum(dim=-1).diff(dim=-1)
        if more > 0 and bool((steps == 1).all()) and not bool(seen[..., -1].any()):
            last = part.length - 1
            yield Sign(f"{name}, token {last}", 0, "queries read the last key", "1: its own token")
            return


CHECK = Check(
    code="self_excluded",
    severity="error",
    title="A token does not see itself",
    explanation="The causal mask hides the diagonal: each token sees only what stands before it, "
    "and the first one nobody, which makes its output NaN or the mean of all values.",
    cure="Hide what lies above the diagonal, and not the diagonal: torch.triu(ones, diagonal=1), "
    "or q_pos >= kv_pos.",
    healthy="each token sees itself",
    source="Vaswani et al. 2017, section 3.2.3 (arXiv:1706.03762)",
    look=look,
    draw=evidence.of_itself,
    symptoms=(
        "future_leak",
        "empty_row_nan",
        "empty_row_mean",
        "nan_origin",
        "window_off_by_one",
        "cache_mismatch",
        "half_overflow",
    ),
)
