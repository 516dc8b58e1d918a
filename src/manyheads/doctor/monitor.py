"""Watch a model while it is trained, and say nothing until something is wrong."""

import math
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from manyheads.doctor.checks import CHECKS
from manyheads.doctor.origin import first_broken
from manyheads.doctor.vitals import Vitals, gradient_norms, signs_of, vitals_of
from manyheads.errors import OptionError, ProbeError
from manyheads.probe import watch

CURES: dict[str, str] = {check.code: check.cure for check in CHECKS} | {
    "loss_at_guessing": "Look for targets that are shifted or shuffled against their inputs, for "
    "weights that the optimizer was not given, and for a learning rate that is far too low or high."
}
STEADY = 0.98
"""A loss above this share of another is no lower."""
OUTSIDE = (
    "Look at how the loss is made of the output: an average over no tokens, a logarithm of 0, "
    "targets that are not finite."
)


@dataclass(frozen=True, repr=False)
class Alarm:
    """Something that went wrong in training.

    Args:
        code: The public name of the disease.
        step: When it was told, counted from 1.
        where: Module path, head, parameter: as much as is known.
        number: The measured evidence.
        unit: What the number counts.
        expected: What a healthy model would have shown.
        cure: What to change.
    """

    code: str
    step: int
    where: str
    number: float
    unit: str
    expected: str
    cure: str

    def __str__(self) -> str:
        return (
            f"step {self.step}, {self.code}: {self.where}: {self.number:.3g} {self.unit}; "
            f"a healthy model shows {self.expected}. {self.cure}"
        )

    def __repr__(self) -> str:
        return f"Alarm(step {self.step}, {self.code}: {self.where})"


class Monitor:
    """What `monitor` returns: call `step` once a step; use it in a with block, or `close` it.

    Attributes:
        alarms: What was told, in order.
        vitals: Of each attention call of the last look.
        gradients: Norm of each matrix's gradient at the last look, by the matrix's name.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int,
        guess: float | None,
        tell: Callable[[Alarm], Any],
    ) -> None:
        if every < 1:
            raise OptionError(
                f"every must be at least 1, in steps; got every={every}. Leave it out for 100."
            )
        self.model, self.every, self.guess, self.tell = model, every, guess, tell
        self.alarms: list[Alarm] = []
        self.vitals: list[Vitals] = []
        self.gradients: dict[str, float] = {}
        self._steps = 0
        self._last: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._seen_before: set[tuple[str, str]] = set()
        self._told: set[tuple[str, str]] = set()
        self._losses: list[float] = []
        self._look: ExitStack | None = None
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),
        ]

    def __repr__(self) -> str:
        told = ", ".join(each.code for each in self.alarms) or "no alarm"
        name = type(self.model).__name__
        return f"Monitor({name}, every={self.every}, step {self._steps}: {told})"

    def step(self, loss: Tensor | float) -> None:
        """Tell the loss of a step, after backward and before the optimizer moves or zeroes.

        Args:
            loss: Of this step.
        """
        self._steps += 1
        due = self._steps == 1 or self._steps % self.every == 0
        # Without reading a number from a device each step: a device is asked when it is due.
        if due or not isinstance(loss, Tensor) or loss.device.type == "cpu":
            number = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
            if not math.isfinite(number):
                self._tell_origin(number)
            elif due:
                self._judge(number)
        self._last = None

    def close(self) -> None:
        """Take the hooks off again."""
        for hook in self._hooks:
            hook.remove()
        self._last = None

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not module.training or self._look is not None:
            return
        self._last = args, kwargs
        if self._steps and (self._steps + 1) % self.every:
            return
        self.vitals = []
        self._look = ExitStack()
        self._look.enter_context(watch(module, each=self._keep))

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        look, self._look = self._look, None
        if look is not None:
            # Where no attention was seen, the loss and the gradients are watched all the same.
            with suppress(ProbeError):
                look.close()

    def _keep(self, call: Any) -> None:
        if call.refusal is None:
            self.vitals.append(vitals_of(call))

    def _judge(self, loss: float) -> None:
        self.gradients = gradient_norms(self.model)
        self._losses.append(loss)
        signs = signs_of(self.vitals, self.gradients)
        if self.guess is not None:
            signs += _against_guessing(self._losses, self.guess)
        now = {(code, where) for code, where, *_ in signs}
        # What is seen once may pass; what is seen at two looks is told, and told once.
        lasting = (now & self._seen_before) | {each for each in now if each[0] == "init_loss"}
        new = lasting - self._told
        for code in dict.fromkeys(each[0] for each in signs):
            same = [each for each in signs if each[0] == code and each[:2] in new]
            if same:
                _, where, number, unit, expected = max(same, key=lambda each: each[2])
                more = ["", " and another place", f" and {len(same) - 1} other places"]
                self._raise(code, where + more[min(len(same), 3) - 1], number, unit, expected)
        self._seen_before = now
        self._told |= new

    def _tell_origin(self, loss: float) -> None:
        if any(each.code == "nan_origin" for each in self.alarms):
            return
        found = "the loss", "is the loss, and no part of the model gave it", OUTSIDE
        if self._last is not None:
            self._look = ExitStack()  # the call that looks for it is none of the loop's
            found = first_broken(self.model, *self._last) or found
        where, unit, cure = found
        self._raise("nan_origin", where, loss, unit, "finite numbers", cure)

    def _raise(
        self, code: str, where: str, number: float, unit: str, expected: str, cure: str = ""
    ) -> None:
        cure = cure or CURES[code]
        self.alarms.append(Alarm(code, self._steps, where, number, unit, expected, cure))
        self.tell(self.alarms[-1])


def monitor(
    model: nn.Module,
    *,
    every: int = 100,
    guess: float | None = None,
    tell: Callable[[Alarm], Any] = print,
) -> Monitor:
    """Watch a model in any training loop: quiet until something is wrong.

    Looked at are entropy, largest score, dead and redundant heads of each attention call, norms of
    the projections' gradients, the loss against guessing, and, if the loss is not finite, the part
    that first gave NaN. A finding must be there at two looks; each is told once. Hooks on modules
    inside of the model see the attention, so a model that calls a kernel in its own forward and has
    no parts is watched by its loss and gradients only.

    Args:
        model: In training; as it is called in the loop.
        every: Steps between two looks; in between nothing is computed.
        guess: The loss of guessing, such as ``math.log(vocabulary)``, in the loss' own unit.
        tell: Called with each `Alarm`.

    Raises:
        OptionError: If `every` is below 1, or the model is no module.

    Example:
        >>> import torch, manyheads as mh
        >>> model = mh.MultiHeadAttention(16, 2)
        >>> with mh.doctor.monitor(model, every=1) as watched:
        ...     for _ in range(3):
        ...         loss = model(torch.randn(2, 5, 16)).square().mean()
        ...         loss.backward()
        ...         watched.step(loss)
        >>> watched.alarms
        []
    """
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model must be a torch.nn.Module; got model={model!r}. Give the one that is trained."
        )
    return Monitor(model, every, guess, tell)


def _against_guessing(losses: list[float], guess: float) -> list[tuple[str, str, float, str, str]]:
    if len(losses) == 1 and losses[0] > guess + 1:
        return [("init_loss", "the loss", losses[0], "at first", f"{guess:.3g}, that of guessing")]
    known = STEADY * guess
    if len(losses) > 5 and min(losses[-5:]) > max(known, STEADY * min(losses[:-5])):
        unit = "or more at each of the last 5 looks, and not falling: no better than guessing"
        expected = f"less than {known:.3g}"
        return [("loss_at_guessing", "the loss", min(losses[-5:]), unit, expected)]
    return []
