"""Positions that begin anew in each chunk of a cached text."""

from collections.abc import Iterator

from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.copying import placeless
from manyheads.doctor.decoding import mismatch, splits
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Decode through the cache; where that is wrong, try again without any positions."""
    for subject in (patient, patient.awake):
        for chunks in splits(patient.length):
            if (found := mismatch(subject, chunks)) is None:
                continue
            without = placeless(subject.model, subject.base)
            if without is None:
                raise CannotTell("the model names nothing that tells positions")
            if mismatch(subject, chunks, without) is not None:
                return  # the cache is wrong without positions too
            token, off = found
            unit = f"of the output is off in chunks of {chunks}, and nothing without positions"
            yield Sign(f"from token {token} on", off, unit, "rounding only")
            return


CHECK = Check(
    code="position_offset_cache",
    severity="error",
    title="Cached tokens stand at wrong positions",
    explanation="With a cache, the positions of new tokens do not go on from the tokens before: "
    "each chunk begins at 0 again, or the offset counts twice. The cache itself is right.",
    cure="Offset positions by the number of cached tokens, once: arange(past, past + new).",
    healthy="any split into chunks gives what one pass gives",
    source="Blaizzy/mlx-vlm#1983",
    look=look,
    needs=("cache",),
    symptoms=("cache_mismatch", "beam_aliasing"),
)
