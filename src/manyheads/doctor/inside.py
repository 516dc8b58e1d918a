"""What happens inside of a model's attention: its calls, and how scores are scaled in all."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from manyheads.doctor.check import CannotTell
from manyheads.doctor.patient import Patient
from manyheads.errors import ProbeError
from manyheads.functional import Call
from manyheads.probe import AttentionCall, watch

PROJECTIONS = ("linear", "addmm", "matmul", "einsum", "__matmul__")


@dataclass(frozen=True)
class Observed:
    """A call of attention, and what its scores were multiplied by in all.

    Args:
        where: The module that made it.
        call: Queries, keys, values, scale, mask.
        seen: The call with its weights and statistics.
        before: What queries and keys were multiplied by between their projections and the scores;
            None if their projections were not recognised.
    """

    where: str
    call: Call
    seen: AttentionCall
    before: float | None

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.call.q.shape[-1]

    @property
    def d_model(self) -> int:
        """Width of all heads."""
        return self.call.q.shape[1] * self.head_dim


def observed(patient: Patient) -> list[Observed]:
    """Every call of attention that the model makes and that could be understood.

    Raises:
        CannotTell: If there is none.
    """
    if patient not in _OBSERVED:
        _OBSERVED[patient] = _observe(patient)
    found = _OBSERVED[patient]
    if isinstance(found, str):
        raise CannotTell(found)
    return found


_OBSERVED: WeakKeyDictionary[Patient, list[Observed] | str] = WeakKeyDictionary()
"""What was observed of each patient, or why nothing was: many checks ask, and it takes long."""


def _observe(patient: Patient) -> list[Observed] | str:
    kept: list[tuple[AttentionCall, list[Tensor]]] = []
    projections = _Projections()

    def keep(seen: AttentionCall) -> None:
        if seen.refusal is None:
            kept.append((seen, projections.seen))
        projections.seen = []

    try:
        with watch(patient.model, each=keep), projections:
            patient.ask(patient.base)
    except ProbeError as error:
        return f"no attention was seen inside ({error})"
    except Exception as error:  # of somebody's model, on inputs that it was not given
        return f"the model failed while it was watched ({type(error).__name__}: {error})"
    if not kept:
        return "no call of attention inside could be understood"
    return [_observed(seen, projected) for seen, projected in kept]


def _observed(seen: AttentionCall, projected: list[Tensor]) -> Observed:
    q, k = _ratio(seen.call.q, projected), _ratio(seen.call.k, projected)
    return Observed(seen.where, seen.call, seen, None if q is None or k is None else q * k)


class _Projections(TorchFunctionMode):
    """Keeps what linear maps gave since the last call of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in PROJECTIONS and isinstance(out, Tensor):
            self.seen.append(out.detach())
        return out


def _ratio(heads: Tensor, projections: list[Tensor]) -> float | None:
    """The one number by which heads are longer than what a projection gave, token by token."""
    batch, count, length, width = heads.shape
    sizes = heads.detach().double().norm(dim=-1).transpose(1, 2)  # (batch, length, heads)
    for projected in projections:
        for made in _as_heads(projected, batch, length, count, width):
            ratios = sizes / made.double().norm(dim=-1).clamp(min=1e-30)
            middle = float(ratios.median())
            if middle and float((ratios / middle - 1).abs().max()) < 1e-4:
                return middle
    return None


def _as_heads(x: Tensor, batch: int, length: int, heads: int, width: int) -> Iterator[Tensor]:
    """A projection as (batch, length, heads, width), in each way in which it can be one."""
    own = heads * width
    if not x.numel() or x.shape[-1] % own or x.numel() % (batch * length * x.shape[-1]):
        return
    flat = x.reshape(-1, x.shape[-1])
    if flat.shape[0] != batch * length:
        return
    for part in flat.split(own, dim=-1):
        yield part.reshape(batch, length, heads, width)
        yield part.reshape(length, batch, heads, width).transpose(0, 1)


def weights_of_all(patient: Patient) -> Tensor:
    """Weights of all heads of all calls that attend to as many keys, (heads, batch, q_len, kv_len).

    Raises:
        CannotTell: If they are too few to judge.
    """
    calls = [each.seen for each in observed(patient)]
    shape = calls[0].weights().shape[-2:]
    same = [each.weights().detach() for each in calls if each.weights().shape[-2:] == shape]
    if min(shape) < 4:
        raise CannotTell("the example has fewer than 4 tokens")
    assert torch.is_tensor(same[0])
    return torch.cat([each.transpose(0, 1) for each in same])
