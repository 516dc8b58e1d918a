"""Documents in one row that read one another."""

from collections.abc import Iterator

from manyheads.doctor import evidence
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.hiding import two_documents
from manyheads.doctor.locate import first_part
from manyheads.doctor.patient import Patient


def look(patient: Patient) -> Iterator[Sign]:
    """Pack two documents into each row, and change one of them."""
    if not patient.has_tokens or patient.length < 2:
        raise CannotTell("tokens have no output of their own")
    call, second = two_documents(patient)
    out = patient.ask(call)
    for changed in (~second, second):
        other = patient.scrambled(changed, call)
        gap = patient.differs(out, patient.ask(other)).masked_fill(changed, 0)
        if gap.any():
            token = gap.nonzero()[0].tolist()[1]
            part = first_part(patient, call, other, ~changed)
            source = int(changed[0].nonzero()[0, 0])
            where = f"{part}, output {token} reads the other document, from token {source}"
            unit = "of the output of a document changes with the other one"
            yield Sign(where, float(gap.max()), unit, "none: documents are strangers")
            return


CHECK = Check(
    code="document_leak",
    severity="error",
    title="Packed documents read one another",
    explanation="Documents that were packed into one row to save padding see one another: a text "
    "goes on from another that has nothing to do with it.",
    cure="Let a token see keys of its own document only: causal & (ids[:, :, None] == ids[:, None, "
    ":]), or variable-length attention with cu_seqlens.",
    healthy="a document is the same alone and in company",
    source="Krell et al. 2021 (arXiv:2107.02027)",
    look=look,
    draw=evidence.of_documents,
    needs=("documents",),
)
