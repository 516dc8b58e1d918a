"""A model on the examination table: a private copy, an example call, and what is known of both."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.doctor.call import Call
from manyheads.doctor.copying import Apart, awake, private_copy
from manyheads.doctor.declared import check_arguments, check_marks, check_parts
from manyheads.doctor.facts import CacheFacts, Facts
from manyheads.doctor.infer import infer_call, infer_output
from manyheads.doctor.output import part
from manyheads.doctor.resize import is_large, resized
from manyheads.doctor.running import answering, run
from manyheads.doctor.stream import Kind, kind_of
from manyheads.errors import ExamineError

EXACT, CLOSE = 1e-12, 1e-5
"""What may change between calls of equal shapes, and of other shapes, as a share of the output."""


@dataclass(frozen=True, eq=False)
class Patient:
    """A model, a call of it, and the facts; made by `Patient.of`.

    Args:
        model: A private copy in eval mode, on the CPU, in float64 where the model can.
        call: The example call, a few rows and tokens of it.
        facts: What was declared, and what could be inferred.
        kinds: What the streams are made of, by their slots.
        seed: Of the inputs that are drawn.
        given: (batch, q_len, kv_len) of the example before it was made smaller.
    """

    model: nn.Module
    call: Call
    facts: Facts
    kinds: dict[Any, Kind]
    seed: int = 0
    given: tuple[int, int, int] = (1, 1, 1)

    @classmethod
    def of(cls, model: nn.Module, call: Call, declared: Facts) -> "Patient":
        """Prepare a model and its example call.

        Raises:
            ExamineError: If the call fails or its output cannot be read; the message says what
                is needed.
        """
        if any(each.is_meta for each in model.parameters()):
            raise ExamineError(
                "model must hold numbers; got weights on the meta device. Load or draw them first."
            )
        if any(each.is_meta for each in call.leaves()):
            raise ExamineError(
                "example input must hold numbers; got a tensor on the meta device. Draw one on the "
                "CPU."
            )
        check_arguments(model, call, declared)
        apart = Apart(model)
        model = private_copy(model).eval().cpu()
        # Tensors of torch.inference_mode have no gradient; their copies do.
        call = call.map(lambda each: (each.clone() if each.is_inference() else each).detach().cpu())
        facts = infer_call(model, call, declared)
        check_marks(call, declared, facts)
        with answering(call), apart:
            output = run(model, call)
        check_parts(output, {"out": declared.out, "weights": declared.weights})
        _check_cache(model, call, declared.cache)
        facts = infer_output(model, call, output, facts)
        with answering(call):
            kinds = {
                slot: kind_of(model, call, call.get(slot))
                for slot in (facts.x, facts.context, facts.value)
                if isinstance(call.get(slot), Tensor)
            }
        given = _sizes(call, facts)
        patient = cls(model, resized(model, call, facts), facts, kinds, given=given)
        # A large model is quick enough in its own precision only.
        wide = None if is_large(model) else patient._in_float64()
        return patient if wide is None else wide

    @property
    def is_wide(self) -> bool:
        """Whether everything is computed in float64."""
        return any(each.dtype == torch.float64 for each in self.model.parameters()) or (
            self.x.dtype == torch.float64
        )

    @property
    def x(self) -> Tensor:
        """The stream whose tokens ask, as drawn for this patient's seed."""
        return self.base.get(self.facts.x)

    @property
    def batch(self) -> int:
        """Rows."""
        return self.x.shape[1 if self.facts.layout == "length" else 0]

    @property
    def length(self) -> int:
        """Tokens of a row."""
        return self.x.shape[0 if self.facts.layout == "length" else 1]

    @property
    def has_tokens(self) -> bool:
        """Whether each token of x has an output of its own."""
        return self.facts.layout != "pooled"

    @property
    def generator(self) -> torch.Generator:
        """Random numbers of this patient's seed, from the beginning."""
        return torch.Generator().manual_seed(1000 + self.seed)

    @cached_property
    def base(self) -> Call:
        """The example call with streams of this patient's own."""
        call, generator = self.call, self.generator
        for slot, kind in self.kinds.items():
            call = call.put(slot, kind.draw(call.get(slot), generator))
        return call

    @cached_property
    def out(self) -> Tensor:
        """The main output for `base`."""
        return self.ask(self.base)

    @cached_property
    def size(self) -> float:
        """The largest number of the output, which errors are measured against."""
        finite = self.out[self.out.isfinite()].abs()
        return float(finite.max()) if finite.numel() else 1.0

    def again(self) -> "Patient":
        """The same patient with independent inputs."""
        return replace(self, seed=self.seed + 1)

    def knowing(self, **facts: Any) -> "Patient":
        """The same patient, of whom more is known."""
        known = replace(self, facts=replace(self.facts, **facts))
        # What it said is what it would say again.
        answers = ("base", "out", "size", "influence")
        vars(known).update({name: vars(self)[name] for name in answers if name in vars(self)})
        return known

    def answer(
        self, call: Call, *, model: nn.Module | None = None, seed: int = 0, live: Any = None
    ) -> Any:
        """Everything that the model answers; it may change the live object and no other."""
        return run(self.model if model is None else model, call, seed=seed, live=live)

    def ask(self, call: Call, *, model: nn.Module | None = None, seed: int = 0) -> Tensor:
        """The main output, (batch, length, ...), or (batch, ...) if it is pooled."""
        return self.main(self.answer(call, model=model, seed=seed))

    def main(self, output: Any) -> Tensor:
        """The main part of an answer, the batch first."""
        found: Tensor = part(output, self.facts.out)
        return found.transpose(0, 1) if self.facts.layout == "length" else found

    def marks(self, where: Tensor) -> Tensor:
        """A (batch, length) tensor as the model lays out its own."""
        return where.T if self.facts.layout == "length" else where

    def scrambled(self, where: Tensor, call: Call | None = None, *, slot: Any = None) -> Call:
        """A call with other tokens where (batch, length) says so.

        Args:
            where: The tokens to change.
            call: What to change; None means `base`.
            slot: The stream to change; None means x.
        """
        call = self.base if call is None else call
        slot = self.facts.x if slot is None else slot
        generator = torch.Generator().manual_seed(2000 + self.seed)
        kind = self.kinds[slot]
        return call.put(slot, kind.scramble(call.get(slot), self.marks(where), generator))

    def tokens(self, *columns: int | slice) -> Tensor:
        """True at some columns of every row, (batch, length)."""
        where = torch.zeros(self.batch, self.length, dtype=torch.bool)
        for column in columns:
            where[:, column] = True
        return where

    def differs(self, a: Tensor, b: Tensor, *, allowed: float | None = None) -> Tensor:
        """Where answers differ, (batch, length), or (batch,) if pooled: by how much of `size`.

        Args:
            a: An answer.
            b: Another.
            allowed: What is rounding; None for equal shapes, where next to nothing is.
        """
        same = (a == b) | (a.isnan() & b.isnan())
        # NaN in one answer alone is the greatest difference that there is.
        gap = torch.where(same, 0.0, (a.double() - b.double()).abs().nan_to_num(nan=torch.inf))
        gap = gap.flatten(2 if self.has_tokens else 1).amax(dim=-1) / max(self.size, 1e-30)
        limit = (EXACT if self.is_wide else 0.0) if allowed is None else allowed
        return torch.where(gap > limit, gap, 0.0)

    @property
    def close(self) -> float:
        """What may change between calls of other shapes, as a share of `size`."""
        return CLOSE if self.is_wide else 10 * CLOSE

    @cached_property
    def influence(self) -> Tensor:
        """How much each token's change changes each output, (length, length): outputs by inputs."""
        return self.influence_under(self.base)

    def influence_under(self, call: Call, *, row: int | None = None) -> Tensor:
        """`influence` for another call; of one row of the batch, or of all."""
        before = self.ask(call)
        columns = []
        for column in range(self.length):
            after = self.ask(self.scrambled(self.tokens(column), call))
            gap = self.differs(before, after)
            columns.append(gap.amax(dim=0) if row is None else gap[row])
        return torch.stack(columns, dim=-1)

    @cached_property
    def awake(self) -> "Patient":
        """The same patient with weights so large that its attention is sharp."""
        return replace(self, model=awake(self.model))

    def outputs_of_parts(self, call: Call) -> Iterator[tuple[str, nn.Module, Any, Any]]:
        """Name, module, inputs and output of each part, in the order in which they finish."""
        seen: list[tuple[str, nn.Module, Any, Any]] = []
        hooks = [
            module.register_forward_hook(_recorder(name, seen), with_kwargs=True)
            for name, module in self.model.named_modules()
        ]
        try:
            self.answer(call)
        finally:
            for hook in hooks:
                hook.remove()
        yield from seen

    def _in_float64(self) -> "Patient | None":
        try:
            model = private_copy(self.model).double()
            call = self.call.map(lambda each: each.double() if each.is_floating_point() else each)
            wide = replace(self, model=model, call=call)
            narrow, found = self.ask(self.call), wide.ask(call)
        except Exception:
            return None
        if found.dtype != torch.float64 or found.shape != narrow.shape:
            return None
        finite = narrow.isfinite()
        off = (found - narrow.double())[finite].abs()
        close = not off.numel() or float(off.max()) <= 0.05 * float(narrow[finite].abs().max())
        return wide if close else None


def _check_cache(model: nn.Module, call: Call, cache: CacheFacts | None) -> None:
    if cache is None or cache.output is None:
        return
    try:
        output = run(model, call.put(cache.argument, cache.start() if cache.start else None))
    except Exception:
        return  # the checks that want a cache tell why there is none
    check_parts(output, {"cache.output": cache.output})


def _sizes(call: Call, facts: Facts) -> tuple[int, int, int]:
    x, context = call.get(facts.x), call.get(facts.context)
    batch, length = (1, 0) if facts.layout == "length" else (0, 1)
    across = isinstance(context, Tensor) and context.ndim > 1
    return x.shape[batch], x.shape[length], context.shape[length] if across else x.shape[length]


def _recorder(name: str, seen: list[tuple[str, nn.Module, Any, Any]]) -> Callable[..., None]:
    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        seen.append((name, module, (*args, *kwargs.values()), output))

    return record
