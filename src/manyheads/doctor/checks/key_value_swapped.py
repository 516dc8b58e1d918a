"""Keys and values in each other's place."""

import copy
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from manyheads.doctor.attentions import attentions
from manyheads.doctor.check import CannotTell, Check, Sign
from manyheads.doctor.patient import Patient

KEY = re.compile(
    r"(^|[._])(w?_?k|w_?key|keys?|to_k|k_?(proj|linear|lin|net|map)|key_\w+)([._]|$)", re.I
)
VALUE = re.compile(
    r"(^|[._])(w?_?v|w_?value|values?|to_v|v_?(proj|linear|lin|net|map)|value_\w+)([._]|$)", re.I
)


def look(patient: Patient) -> Iterator[Sign]:
    """What is taken enters linearly; what is matched does not."""
    asked = False
    for name, part in attentions(patient):
        bends = _by_streams(part) or _by_weights(part)
        if bends is None:
            continue
        asked = True
        by_key, by_value = bends
        if by_key < 1e-9 and by_value > 1e-6:
            unit = "of the output bends with the values, and nothing with the keys"
            yield Sign(name, by_value, unit, "the other way round")
    if not asked:
        raise CannotTell("no layer takes keys and values apart, or names their weights")


def _by_streams(part: Patient) -> tuple[float, float] | None:
    key, value = part.facts.context, part.facts.value
    if key is None or value is None:
        return None

    def bend(slot: object) -> float:
        a = part.base.get(slot)  # type: ignore[arg-type]
        b = part.kinds[slot].draw(a, torch.Generator().manual_seed(7000 + part.seed))
        asks = [part.ask(part.base.put(slot, each)) for each in (a, b, (a + b) / 2)]  # type: ignore[arg-type]
        return _off(part, asks[0] + asks[1] - 2 * asks[2])

    return bend(key), bend(value)


def _by_weights(part: Patient) -> tuple[float, float] | None:
    names = [name for name, _ in part.model.named_parameters()]
    keys = [name for name in names if KEY.search(name)]
    values = [name for name in names if VALUE.search(name)]
    if not keys or not values or set(keys) & set(values):
        return None

    def bend(chosen: list[str]) -> float:
        asks = [part.ask(part.base, model=_scaled(part.model, chosen, by)) for by in (1, 2, 3)]
        return _off(part, asks[0] + asks[2] - 2 * asks[1])

    return bend(keys), bend(values)


def _scaled(model: nn.Module, names: list[str], by: float) -> nn.Module:
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name in names:
            model.get_parameter(name).mul_(by)
    return model


def _off(part: Patient, bent: Tensor) -> float:
    return float(bent.abs().max()) / max(part.size, 1e-30)


CHECK = Check(
    code="key_value_swapped",
    severity="error",
    title="Keys and values are swapped",
    explanation="What is called key is taken, and what is called value is matched. A model that is "
    "trained so works; one that loads weights from elsewhere does not.",
    cure="softmax(q @ k.mT) @ v: look at the order of arguments and of the packed projection.",
    healthy="the output is linear in the values",
    source="Vaswani et al. 2017, eq. 1 (arXiv:1706.03762)",
    look=look,
)
