"""Hand-written attention: products that a softmax turns into weights and a product with values."""

from collections.abc import Iterator
from functools import cache
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
from manyheads.probe.known import Exponentials, Known, Lost, Weights
from manyheads.probe.mixed import Mixed
from manyheads.probe.recorder import Recorder
from manyheads.probe.scores import Operand, Scores, four_of
from manyheads.probe.sdpa import FUSED, four, record_sdpa
from manyheads.probe.steps import STEPS
from manyheads.probe.torch_mha import heads_of

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
        if not self.recorder.is_free:
            return func(*args, **kwargs)
        is_op = isinstance(func, torch._ops.OpOverload)
        if is_op and torch.is_inference_mode_enabled():
            # Elsewhere autograd has taken composite operations apart before they come here.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if not is_op:
            if func.name() == NAME:
                with torch.no_grad(), self.recorder.busy():
                    record_flex(self.recorder, args, out[0])
                    self._change(out[0], out[0])
            return out
        name = _names(func)
        if name in _BEGINS or (self._known and self._has_known(args)):
            with torch.no_grad(), self.recorder.busy():
                self._follow(func, name, args, kwargs, out)
        return out

    def _has_known(self, args: Any) -> bool:
        return any(x.untyped_storage()._cdata in self._known for x in _tensors(args))

    def _follow(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        if name in FUSED:
            names = [argument.name for argument in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            record_sdpa(self.recorder, given, out[0])
            self._change(out[0], four(out[0]))
            return
        if name in _PRODUCTS:
            self._product(name, args, kwargs, out)
            return
        first = out[0] if isinstance(out, tuple | list) and out else out
        if not isinstance(first, Tensor) or first.is_meta:
            return
        found = [(x, *entry) for x in _tensors(args) if (entry := self._look_up(x))]
        if found:
            # A bias may be made of a product as well, and be lost; the scores are what counts.
            tensor, axes, known = min(found, key=lambda each: isinstance(each[2], Lost))
            is_new = func._schema.is_mutable or not _is_view(first, tensor)
            if is_new:
                self._step(name, tensor, axes, known, args, kwargs, first)
            return
        if name in _SOFTMAX:
            self.recorder.notes.add(_NO_PRODUCT)

    def _look_up(self, tensor: Tensor) -> tuple[list[Axis], Known] | None:
        entry = self._known.get(tensor.untyped_storage()._cdata)
        if entry is None or entry[0].expired():
            return None
        axes = None if entry[1] is None else entry[1].read(tensor)
        if axes is not None:
            return axes, entry[2]
        if isinstance(entry[2], Weights):
            return None
        return [], entry[2] if isinstance(entry[2], Lost) else Lost("an unusual view")

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
            if found is not None and isinstance(found[1], Exponentials):
                self.recorder.miss("exp", "exponentials that met values before their own sums")
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
        if isinstance(known, Weights):
            changed = known.changed or name not in _COPIES
            after = Weights(known.call, known.own, changed) if name in _ON_WEIGHTS else None
            if after is None:
                self.recorder.notes.add(f"weights that went through {name} on their way to values")
            self._keep(out, moved(axes, out), after)
        elif isinstance(known, Lost):
            if name in _SOFTMAX:
                self.recorder.miss(known.step, _NO_PRODUCT)
            else:
                self._keep(out, None, known)
        elif isinstance(known, Exponentials):
            if name in _COPIES:
                self._keep(out, moved(axes, out), known)
            elif name in ("div", "mul") and out.shape == tensor.shape:
                self._divided(axes, known.call, out)
        elif name in _SOFTMAX:
            self._softmax(axes, known, args[1], out)
        elif name == "exp":
            self._exponentials(axes, known, out)
        elif name in _COPIES:
            self._keep(out, moved(axes, out), known)
        elif name not in STEPS:
            self._keep(out, None, Lost(name))
        else:
            after_step = STEPS[name](known, tensor, tuple(axes), args, kwargs)
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
        if (call := self._called(axes, scores)) is not None:
            self._keep(out, moved(axes, out), Weights(call, self._some_rows(axes, out)))

    def _exponentials(self, axes: list[Axis], scores: Scores, out: Tensor) -> None:
        if (call := self._called(axes, scores)) is not None:
            self._divided(axes, call, out)

    def _divided(self, axes: list[Axis], call: Call, out: Tensor) -> None:
        own = self._some_rows(axes, out)
        sums = own.sum(dim=-1)
        is_whole = bool(((sums - 1).abs() < _WHOLE).all())
        self._keep(out, moved(axes, out), Weights(call, own) if is_whole else Exponentials(call))

    def _called(self, axes: list[Axis], scores: Scores) -> Call | None:
        try:
            return scores.call(axes, heads_of(self.recorder.module))
        except (ManyheadsError, RuntimeError) as error:
            self.recorder.notes.add(f"a softmax whose scores were not understood ({error})")
            return None

    def _some_rows(self, axes: list[Axis], weights: Tensor) -> Tensor:
        return compared_rows(four_of(weights.detach(), axes, heads_of(self.recorder.module)))

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
_NO_PRODUCT = "a softmax over what is no whole product of two tensors"
_PRODUCTS = {"bmm", "mm", "baddbmm"}
_BEGINS = {*_PRODUCTS, *_SOFTMAX, *FUSED}
"""Operations that say something even of tensors of which nothing is known."""
_WHOLE = 0.01
"""By how much sums of weights may differ from 1, in the coarsest dtype."""
_ON_WEIGHTS = {*_COPIES, "mul", "div", "native_dropout", "masked_fill", "where", "nan_to_num"}


@cache
def _names(func: Any) -> str:
    """An operation's name, the same whether it writes in place."""
    name: str = func._schema.name
    return name if name in FUSED else name.removeprefix("aten::").removesuffix("_")


def _tensors(args: Any) -> Iterator[Tensor]:
    for x in args:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from _tensors(x)


def _is_view(x: Tensor, of: Tensor) -> bool:
    return x.untyped_storage()._cdata == of.untyped_storage()._cdata
