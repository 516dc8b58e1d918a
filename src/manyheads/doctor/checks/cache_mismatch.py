"""A cache that gives other answers than one pass."""

from collections.abc import Iterator
from math import isinf

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.decoding import mismatch, splits
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Decode in single tokens, and in chunks of several."""
    if not patient.has_tokens or patient.length < 2:
        raise CannotTell("the example has no tokens to decode one by one")
    for subject in (patient, patient.awake):
        for chunks in splits(patient.length):
            if (found := mismatch(subject, chunks)) is not None:
                token, off = found
                unit = f"of the output is off when decoded in chunks of {chunks}"
                if isinf(off):
                    unit += ", where some tokens are not answered, or by NaN"
                yield Sign(f"from token {token} on", off, unit, "rounding only, below 1e-5")
                return


CHECK = Check(
    code="cache_mismatch",
    severity="error",
    title="Decoding with the cache differs from one pass",
    explanation="Tokens that are decoded through the cache get another answer than in one pass "
    "over the text: keys are lost, overwritten or seen too early, positions begin anew in each "
    "chunk, or the causal mask is aligned to the wrong corner.",
    cure="Append keys and values before attending, evict after it, and let positions decide what "
    "is causal: q_pos >= kv_pos, not a square mask cut to size. New tokens go on behind the old.",
    healthy="any split into chunks gives what one pass gives",
    source="Lightning-AI/litgpt#2182; pytorch/pytorch#108108",
    look=look,
    needs=("cache",),
    symptoms=("beam_aliasing",),
)
