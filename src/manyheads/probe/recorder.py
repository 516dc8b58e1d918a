"""What a watch keeps: whose turn it is in the model, and the calls that were asked for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from manyheads.errors import ManyheadsError, OptionError, ProbeError
from manyheads.functional import Call
from manyheads.probe.call import AttentionCall, disagreement, owned
from manyheads.probe.hooks import Hook
from manyheads.probe.mixed import Mixed
from manyheads.probe.parts import as_tensor, of_heads, of_queries

Change = Callable[[str, Tensor], Tensor]
Queries = slice | Sequence[int] | Tensor | None
THE_MODEL = "(the model)"
"""Where a call is made that the watched module makes itself."""


class Run(NamedTuple):
    """One run of a module's forward, and what tells it from its other runs."""

    module: nn.Module
    mark: object


class Recorder:
    """Keeps the calls of one model that were asked for; `watch` says what each argument means."""

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str] | None,
        heads: Sequence[int] | None,
        queries: Queries,
        each: Callable[[AttentionCall], Any] | None,
        change: Change | None = None,
    ) -> None:
        self.model, self.heads, self.queries = model, heads, queries
        self.each = None if each is None else _unseen(each)
        self.change = change
        self.names = {module: name for name, module in model.named_modules()}
        self.wanted = _wanted(layers, list(self.names.values()))
        self.calls: list[Any] = []
        self.seen = 0
        self.notes: set[str] = set()
        self.missed: dict[str, str] = {}
        self._stack: list[Run] = []
        self._busy = False
        self._thread = get_ident()

    @property
    def module(self) -> nn.Module | None:
        """The module of the model whose forward is running; None outside of all."""
        return self._stack[-1].module if self._stack else None

    @property
    def is_free(self) -> bool:
        """Whether a call that is seen now is a new one, and not the inside of one."""
        return self.is_idle and bool(self._stack)

    @property
    def is_idle(self) -> bool:
        """Whether no call is being recorded in this thread, and tensors are what they seem."""
        return self.is_here and not self._busy and not _is_transformed()

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that watches; what others run meanwhile is their own."""
        return get_ident() == self._thread

    @contextmanager
    def busy(self) -> Iterator[None]:
        """What runs in here is the inside of a call that is being recorded."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    @contextmanager
    def following(self) -> Iterator[None]:
        """Know, in here, which module is running."""
        handles: list[Any] = []
        try:
            for module in self.names:
                if isinstance(module, torch.jit.RecursiveScriptModule):
                    if module is self.model:
                        raise ProbeError(
                            f"model must run in Python to be watched; got a {type(module).__name__}"
                            f". Watch the module that it was scripted from."
                        )
                    continue  # the module around it is named in its place
                enter = module.register_forward_pre_hook(Hook(self._enter), prepend=True)
                handles.append(enter)
                handles.append(module.register_forward_hook(Hook(self._leave), always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._stack.clear()

    def _enter(self, module: nn.Module, _: object) -> None:
        if self.is_here:
            if torch.jit.is_tracing() or torch.compiler.is_compiling():
                raise ProbeError(
                    "a watched model must run; got one that is traced or exported in the block. "
                    "Trace or export it outside, and watch it where it runs."
                )
            self._stack.append(Run(module, object()))

    def _leave(self, module: nn.Module, *_: object) -> None:
        if self.is_here and any(run.module is module for run in self._stack):
            while self._stack.pop().module is not module:
                pass

    def record(
        self,
        source: str,
        make: Callable[[], Call],
        mixed: Mixed,
        *,
        weights: Tensor | None = None,
        is_told: bool = True,
        module: nn.Module | None = None,
        rounding: float | None = None,
    ) -> None:
        """Keep a call if it was asked for.

        Args:
            source: How it was seen.
            make: Settles what was seen; a mistake in it becomes the call's refusal.
            mixed: What the model mixed.
            weights: The model's own weights of `compared_rows`, where it has them.
            is_told: Whether the call tells what the model mixed; dropout parts the two.
            module: Who made the call; None means the module that is running.
            rounding: By what share of the greatest number the output may be off; None for what is
                usual in its dtype.
        """
        where = self.names[module or self._stack[-1].module]
        self.seen += 1
        if self.wanted is not None and where not in self.wanted:
            return
        with torch.no_grad(), self.busy():
            with _without_modes():
                found = self._settled(
                    where or THE_MODEL, source, make, mixed, weights, is_told, rounding
                )
            found.run = self._stack[-1].mark
            self.calls.append(found if self.each is None else self.each(found))

    def miss(self, step: str, why: str) -> None:
        """Remember that a softmax of scores was not understood.

        Args:
            step: The step that was not followed.
            why: What came of it.
        """
        self.notes.add(f"{why} (after {step})")
        where = self.names[self._stack[-1].module]
        if self.wanted is None or where in self.wanted:
            self.missed.setdefault(where or THE_MODEL, step)

    def changed(self, output: Tensor, module: nn.Module | None = None) -> Tensor:
        """What the model goes on with in the place of what its heads mixed.

        Args:
            output: (batch, heads, q_len, value_dim).
            module: Who made the call; None means the module that is running.
        """
        where = self.names[module or self._stack[-1].module]
        if self.change is None or (self.wanted is not None and where not in self.wanted):
            return output
        with self.busy():
            return self.change(where or THE_MODEL, output)

    def _settled(
        self,
        where: str,
        source: str,
        make: Callable[[], Call],
        mixed: Mixed,
        weights: Tensor | None,
        is_told: bool,
        rounding: float | None,
    ) -> AttentionCall:
        live = None if self.each is None else mixed
        try:
            call, output = make(), mixed.heads()
            compared = output if is_told else None
            refusal = _without_numbers(call) or disagreement(call, compared, weights, rounding)
        except ManyheadsError as error:
            return AttentionCall(where, source, None, refusal=f"({error})", mixed=live)
        if refusal is not None:
            return AttentionCall(where, source, None, refusal=refusal, mixed=live)
        if self.heads is not None:
            _check_heads(self.heads, call.q.shape[1], where)
            heads = as_tensor(list(self.heads), call.q.device)
            call, output = of_heads(call, heads), output[:, heads]
        if self.queries is not None:
            queries = self.queries
            if not isinstance(queries, slice):
                queries = as_tensor(queries, call.q.device)
            call, output = of_queries(call, queries), output[:, :, queries]
        if self.each is None:
            call, output = owned(call), output.detach().clone()
        return AttentionCall(where, source, call, output, mixed=live)


def _is_transformed() -> bool:
    """Whether tensors stand for others now; those of `vmap` and `grad` are seen further down."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def _without_modes() -> Iterator[None]:
    """Outside of all modes, which would look at every step in here and make it slow."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def _unseen(each: Callable[[AttentionCall], Any]) -> Callable[[AttentionCall], Any]:
    def unseen(call: AttentionCall) -> Any:
        with _without_modes():
            return each(call)

    return unseen


def _without_numbers(call: Call) -> str | None:
    if call.q.device.type == "meta":
        return "tensors on the meta device hold no numbers"
    return None


def _check_heads(heads: Sequence[int], num_heads: int, where: str) -> None:
    wrong = [head for head in heads if not 0 <= head < num_heads]
    if wrong:
        raise OptionError(
            f"heads must be numbers from 0 to {num_heads - 1}; got heads={list(heads)}, and "
            f"{where} has {num_heads}. Leave {wrong[0]} out, or say layers= too."
        )


def _wanted(layers: str | Sequence[str] | None, names: list[str]) -> set[str] | None:
    """The modules that are asked for; None for all."""
    if layers is None:
        return None
    wanted: set[str] = set()
    for pattern in [layers] if isinstance(layers, str) else layers:
        found = {n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")}
        if not found:
            near = get_close_matches(pattern, names, n=3, cutoff=0.4)
            raise OptionError(
                f"layers must name modules of the model; got layers={pattern!r}. Near it are "
                f"{', '.join(map(repr, near)) or 'none'}; * stands for anything."
            )
        wanted |= found
    return wanted
