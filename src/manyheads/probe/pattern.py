"""Hand-written attention: products that a softmax turns into weights and a product with values."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from manyheads.errors import ManyheadsError
from manyheads.functional import Call
from manyheads.probe.axes import Axes, Axis, moved
from manyheads.probe.call import compared_rows
from manyheads.probe.flex import NAME, record_flex
from manyheads.probe.mixed import Mixed
from manyheads.probe.recorder import Recorder
from manyheads.probe.scores import Operand, Scores, four_of
from manyheads.probe.sdpa import FUSED, four, record_sdpa
from manyheads.probe.steps import STEPS
from manyheads.probe.torch_mha import heads_of


@dataclass(frozen=True)
class Weights:
    """What a softmax made of scores.

    Args:
        call: The call that it belongs to.
        own: Some of its rows, to compare with.
        changed: Whether it was changed since, as dropout does.
    """

    call: Call
    own: Tensor
    changed: bool = False


@dataclass(frozen=True)
class Lost:
    """What was made of scores by a step that is not followed; a softmax of it is told as missed."""

    step: str


Known = Scores | Weights | Lost
_COPIES = {"clone", "_to_copy", "alias", "detach", "contiguous", "type_as", "to"}


class WatchPattern(TorchDispatchMode):
    """Follows products of two tensors to a softmax and on to the next product.

    What is known of a tensor is kept by the memory that it lies in, so that views know it too.
    """

    supports_higher_order_operators = True
    only_watches = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self._known: dict[int, tuple[StorageWeakRef, Axes | None, Known]] = {}
        parameters = recorder.model.parameters()
        self._parameters = {parameter.untyped_storage()._cdata for parameter in parameters}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        is_op = isinstance(func, torch._ops.OpOverload)
        if is_op and torch.is_inference_mode_enabled() and self.recorder.is_free:
            # Elsewhere autograd has taken composite operations apart before they come here.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if self.recorder.is_free:
            with torch.no_grad(), self.recorder.busy():
                self._follow(func, args, kwargs, out)
        return out

    def _follow(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if not isinstance(func, torch._ops.OpOverload):
            if func.name() == NAME:
                record_flex(self.recorder, args, out[0])
                self._change(out[0], out[0])
            return
        name = func._schema.name
        if name in FUSED:
            names = [argument.name for argument in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            record_sdpa(self.recorder, given, out[0])
            self._change(out[0], four(out[0]))
            return
        name = name.removeprefix("aten::").removesuffix("_")
        if name in ("bmm", "mm", "baddbmm"):
            self._product(name, args, kwargs, out)
            return
        first = out[0] if isinstance(out, tuple | list) and out else out
        if not isinstance(first, Tensor) or first.is_meta:
            return
        several = [each for x in args for each in (x if isinstance(x, list) else [x])]
        tensors = [x for x in several if isinstance(x, Tensor)]
        found = [(tensor, *entry) for tensor in tensors if (entry := self._look_up(tensor))]
        if found:
            # A bias may be made of a product as well, and be lost; the scores are what counts.
            tensor, axes, known = min(found, key=lambda each: isinstance(each[2], Lost))
            self._step(name, tensor, axes, known, args, kwargs, first)
            return
        if name in _SOFTMAX:
            self.recorder.notes.add("a softmax over what is no whole product of two tensors")

    def _look_up(self, tensor: Tensor) -> tuple[list[Axis], Known] | None:
        entry = self._known.get(tensor.untyped_storage()._cdata)
        if entry is None or entry[0].expired():
            return None
        axes = None if entry[1] is None else entry[1].read(tensor)
        if axes is not None:
            return axes, entry[2]
        return None if isinstance(entry[2], Weights) else ([], Lost("an unusual view"))

    def _keep(self, tensor: Tensor, axes: Axes | None, known: Known | None) -> None:
        storage = tensor.untyped_storage()
        if known is None or (axes is None and not isinstance(known, Lost)):
            self._known.pop(storage._cdata, None)
            return
        self._known[storage._cdata] = (StorageWeakRef(storage), axes, known)

    def _product(self, name: str, args: Any, kwargs: dict[str, Any], out: Tensor) -> None:
        # Forget what has died, and with it the queries and keys that it was made of.
        self._known = {at: e for at, e in self._known.items() if not e[0].expired()}
        *added, left, right = args[: 3 if name == "baddbmm" else 2]
        for one, other in ((left, right), (right, left)):
            found = self._look_up(one)
            if found is not None and isinstance(found[1], Weights):
                self._mixed(found[0], found[1], one is left, one, other, out)
                return
        if name == "mm":
            if not self._parameters.isdisjoint(x.untyped_storage()._cdata for x in (left, right)):
                return  # a projection
            left, right = left[None], right[None]
        rows, columns = left.shape[1], right.shape[2]
        scores: Scores | None = Scores(left.detach(), right.detach().mT)
        lead, row, column = out.stride() if out.ndim == 3 else (0, *out.stride())
        axes = [
            Axis("lead", left.shape[0], 1, lead),
            Axis("row", rows, 0, row),
            Axis("column", columns, 0, column),
        ]
        axes = axes if out.ndim == 3 else axes[1:]
        axes = [a if a.size > 1 else Axis("lead", 1, 0, a.stride) for a in axes]
        if added and scores is not None:
            scores = scores.times(float(kwargs.get("alpha", 1)))
            beta = float(kwargs.get("beta", 1))
            if scores is not None and beta:
                scores = scores.plus(Operand(added[0].detach(), tuple(axes), beta))
        self._keep(out, Axes(axes), scores)

    def _step(
        self,
        name: str,
        tensor: Tensor,
        axes: list[Axis],
        known: Known,
        args: Any,
        kwargs: dict[str, Any],
        out: Tensor,
    ) -> None:
        is_view = out.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        if isinstance(known, Weights):
            if is_view and name not in _IN_PLACE:
                return
            changed = known.changed or name not in _COPIES
            after = Weights(known.call, known.own, changed) if name in _ON_WEIGHTS else None
            self._keep(out, moved(axes, out), after)
            return
        if isinstance(known, Lost):
            if name in _SOFTMAX:
                self.recorder.miss(known.step)
            elif not is_view:
                self._keep(out, None, known)
            return
        if name in _SOFTMAX:
            self._softmax(axes, known, args[1], out)
            return
        if name in _COPIES:
            if not is_view:
                self._keep(out, moved(axes, out), known)
            return
        step = STEPS.get(name)
        if step is None:
            if name in _EXPONENTIALS:
                self.recorder.notes.add("exponentials in the place of a softmax")
            if not is_view:
                self._keep(out, None, Lost(name))
            return
        after_step = step(known, tensor, tuple(axes), args, kwargs)
        if after_step is None:
            self.recorder.notes.add(f"scores went through an unusual {name}")
        laid = moved(axes, out)
        self._keep(out, laid, Lost(name) if after_step is None or laid is None else after_step)

    def _softmax(self, axes: list[Axis], scores: Scores, dim: int, out: Tensor) -> None:
        axis = axes[dim]
        if axis.role == "row":  # keys stand on the left
            self.recorder.notes.add("a softmax over the rows of a product")
            return
        if axis.role != "column" and scores.right.shape[1] != 1:
            return
        folded = heads_of(self.recorder.module)
        try:
            call = scores.call(axes, folded)
            own = compared_rows(four_of(out.detach(), axes, folded))
        except (ManyheadsError, RuntimeError) as error:
            self.recorder.notes.add(f"a softmax whose scores were not understood ({error})")
            return
        self._keep(out, moved(axes, out), Weights(call, own))

    def _mixed(
        self, axes: list[Axis], weights: Weights, on_left: bool, own: Tensor, v: Tensor, out: Tensor
    ) -> None:
        call = weights.call
        batch, heads, rows, _ = call.q.shape
        if not on_left:
            own, v = own.mT, v.mT
        if own.shape[-2:] != (rows, call.k.shape[2]):
            return
        values = v.reshape(batch, heads, *v.shape[-2:])

        def split(x: Tensor) -> Tensor:
            x = x if on_left else x.mT
            return x.reshape(batch, heads, *x.shape[-2:])

        mixed = Mixed(out, split)
        self.recorder.record(
            "pattern",
            lambda: call._replace(v=values.to(call.q.dtype)),
            mixed,
            weights=weights.own,
            is_told=not weights.changed,
        )
        self._change(out if on_left else out.mT, mixed.heads())

    def _change(self, out: Tensor, mixed: Tensor) -> None:
        # Below autograd, where a tensor that nobody has seen yet may be written to.
        if self.recorder.change is not None:
            out.copy_(self.recorder.changed(mixed).reshape(out.shape))


_SOFTMAX = {"_softmax", "_safe_softmax"}
_EXPONENTIALS = {"exp", "exp2", "logsumexp"}
_IN_PLACE = {"mul", "div", "add", "sub", "masked_fill", "dropout"}
_ON_WEIGHTS = {*_COPIES, "mul", "div", "native_dropout", "masked_fill", "where", "nan_to_num"}
