"""One law of a model as a plain assert, for anyone's tests."""

from dataclasses import replace
from typing import Any

from torch import nn

from manyheads.doctor.call import Call
from manyheads.doctor.causality import with_causality
from manyheads.doctor.check import Check
from manyheads.doctor.checks import CHECKS
from manyheads.doctor.facts import Facts
from manyheads.doctor.patient import Patient
from manyheads.errors import ExamineError

UNKNOWN = Facts()


def assert_causal(model: nn.Module, *args: Any, facts: Facts = UNKNOWN, **kwargs: Any) -> None:
    """Hold that no output depends on what comes after it.

    Args:
        model: Any module.
        args: An example input, as the model takes it.
        facts: What its names and answers do not tell; see `Facts`.
        kwargs: The rest of the example input.

    Raises:
        AssertionError: If one does; the message names the first output and the input it reads.
        ExamineError: If that cannot be told; the message says what to declare.

    Example:
        >>> import torch, manyheads as mh
        >>> layer = mh.MultiHeadAttention(16, 4)
        >>> assert_causal(layer, torch.randn(2, 5, 16), mask=mh.Causal())
        >>> try:
        ...     assert_causal(layer, torch.randn(2, 5, 16))
        ... except AssertionError as error:
        ...     print(str(error).split(":")[0])
        MultiHeadAttention, output 0 reads input 1
    """
    causal = facts.causal or True
    _hold(("future_leak",), model, args, kwargs, replace(facts, causal=causal))


def assert_padding_invariant(
    model: nn.Module, *args: Any, facts: Facts = UNKNOWN, **kwargs: Any
) -> None:
    """Hold that what stands in padding reaches no output of a real token.

    Args:
        model: Any module whose padding is an argument, such as ``attention_mask``.
        args: An example input, as the model takes it.
        facts: What its names and answers do not tell; see `Facts`.
        kwargs: The rest of the example input.

    Raises:
        AssertionError: If it does; the message names the first output and the padding it reads.
        ExamineError: If that cannot be told; the message says what to declare.

    Example:
        >>> import torch, manyheads as mh
        >>> layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        >>> padding = torch.zeros(2, 5, dtype=torch.bool)
        >>> assert_padding_invariant(layer, torch.randn(2, 5, 16), src_key_padding_mask=padding)
    """
    _hold(("mask_lost", "padding_leak"), model, args, kwargs, facts)


def assert_batch_invariant(
    model: nn.Module, *args: Any, facts: Facts = UNKNOWN, **kwargs: Any
) -> None:
    """Hold that a row says the same alone and in any company.

    Args:
        model: Any module.
        args: An example input, as the model takes it.
        facts: What its names and answers do not tell; see `Facts`.
        kwargs: The rest of the example input.

    Raises:
        AssertionError: If it does not; the message names the first row and the row it reads.
        ExamineError: If that cannot be told; the message says what to declare.

    Example:
        >>> import torch, manyheads as mh
        >>> assert_batch_invariant(mh.EncoderLayer(16, 4, 32), torch.randn(2, 5, 16))
    """
    _hold(("batch_mixing",), model, args, kwargs, facts)


def assert_cache_consistent(
    model: nn.Module, *args: Any, facts: Facts = UNKNOWN, **kwargs: Any
) -> None:
    """Hold that decoding through the cache gives what one pass gives, however the text is cut.

    Args:
        model: Any module with a cache.
        args: An example input, as the model takes it without a cache.
        facts: How the cache goes in and out, and what its names do not tell; see `Facts`.
        kwargs: The rest of the example input.

    Raises:
        AssertionError: If it does not; the message names the first token that is off.
        ExamineError: If that cannot be told; the message says what to declare.

    Example:
        >>> import torch, manyheads as mh
        >>> facts = Facts(cache=mh.doctor.CacheFacts("cache", start=mh.GrowingCache))
        >>> layer = mh.MultiHeadAttention(16, 4)
        >>> assert_cache_consistent(layer, torch.randn(2, 5, 16), mask=mh.Causal(), facts=facts)
    """
    _hold(("cache_mismatch",), model, args, kwargs, facts)


def assert_isolated_documents(
    model: nn.Module, *args: Any, facts: Facts = UNKNOWN, **kwargs: Any
) -> None:
    """Hold that documents that share a row do not read one another.

    Args:
        model: Any module that is told each token's document.
        args: An example input, as the model takes it.
        facts: Which argument tells it, and what its names do not tell; see `Facts`.
        kwargs: The rest of the example input.

    Raises:
        AssertionError: If they do; the message names the first output and the input it reads.
        ExamineError: If that cannot be told; the message says what to declare.

    Example:
        >>> import torch, manyheads as mh
        >>> class Packed(mh.MultiHeadAttention):
        ...     def forward(self, x, document_ids):
        ...         return super().forward(x, mask=mh.Documents(document_ids))
        >>> ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
        >>> assert_isolated_documents(Packed(16, 4), torch.randn(2, 5, 16), ids)
    """
    _hold(("document_leak",), model, args, kwargs, facts)


def _hold(
    codes: tuple[str, ...],
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    facts: Facts,
) -> None:
    patient = with_causality(Patient.of(model, Call.of(model, args, kwargs), facts))
    checks: dict[str, Check] = {check.code: check for check in CHECKS}
    for code in codes:
        verdict = checks[code].run(patient)
        if verdict.findings:
            found = verdict.findings[0]
            raise AssertionError(f"{found.where}: {found.evidence}. {found.cure} ({code})")
    if verdict.says == "cannot tell":  # the last is the law itself, the others are its causes
        raise ExamineError(
            f"{code} must be a question that this model and its example input can answer; got "
            f"{type(model).__name__}: {verdict.reason}."
        )
