"""From pieces of words to words: labels and weights that a reader can follow."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.lens.checks import check_tensor

Span = tuple[int, int]


def merge_weights(
    weights: Float[Tensor, "*lead q_len kv_len"],
    query_spans: Sequence[Span],
    key_spans: Sequence[Span],
) -> Float[Tensor, "*lead queries keys"]:
    """The weights between words, from the weights between their pieces.

    Summed over the pieces of a key and averaged over the pieces of a query, so that each row
    still sums to 1. (An average over keys as well would make long words look unread.)

    Args:
        weights: Who reads whom, between pieces.
        query_spans: For each word its first piece and the one after its last.
        key_spans: The same of the keys.

    Returns:
        The weights between words, in the dtype of ``weights``.

    Raises:
        ShapeError: If a span is empty or reaches beyond the pieces.
        OptionError: If spans overlap or leave a piece out, so that rows would not sum to 1.

    Example:
        >>> merge_weights(torch.tensor([[0.5, 0.3, 0.2]]), [(0, 1)], [(0, 2), (2, 3)])
        tensor([[0.8000, 0.2000]])
    """
    check_tensor("weights", weights)
    if weights.ndim < 2:
        raise ShapeError(
            f"weights must be (..., q_len, kv_len); got shape {tuple(weights.shape)}. Give a map."
        )
    rows = _membership(query_spans, weights.shape[-2], "query_spans").to(weights)
    columns = _membership(key_spans, weights.shape[-1], "key_spans").to(weights)
    rows = rows / rows.sum(dim=-1, keepdim=True)
    return rows @ weights @ columns.T


def merge_labels(pieces: Sequence[str | bytes], spans: Sequence[Span]) -> list[str]:
    """The words' text. Pieces of bytes are joined before they are read as UTF-8.

    Args:
        pieces: Text, or bytes where a tokenizer cuts inside of a character.
        spans: For each word its first piece and the one after its last.

    Returns:
        One text a word; bytes that are no UTF-8 become ``\\xNN``.

    Example:
        >>> merge_labels([bytes([b]) for b in "中A".encode()], [(0, 3), (3, 4)])
        ['中', 'A']
    """
    is_list = isinstance(pieces, Sequence)
    wrong = [each for each in pieces if not isinstance(each, str | bytes)] if is_list else [pieces]
    if wrong:
        raise OptionError(
            f"pieces must be a list of str or bytes; got {wrong[0]!r}. Let the tokenizer write "
            f"each id."
        )
    _membership(spans, len(pieces), "spans")
    joined = []
    for first, after in spans:
        raw = [p.encode() if isinstance(p, str) else p for p in pieces[first:after]]
        joined.append(b"".join(raw).decode("utf-8", errors="backslashreplace"))
    return joined


def _membership(spans: Sequence[Span], length: int, name: str) -> Tensor:
    """(words, pieces): 1 where a piece belongs to a word."""
    is_list = isinstance(spans, Sequence) and not isinstance(spans, str)
    for each in spans if is_list else [spans]:
        numbers = [n for n in each if isinstance(n, int)] if isinstance(each, Sequence) else []
        if len(numbers) != 2:
            raise ShapeError(
                f"{name} must be a list of (first piece, piece after the last); got {each!r}. "
                f"Write [(0, 2), (2, 3)]."
            )
    member = torch.zeros(len(spans), length)
    for word, (first, after) in enumerate(spans):
        if not 0 <= first < after <= length:
            raise ShapeError(
                f"{name} must lie within the {length} pieces, first before last; got "
                f"{name}[{word}]={(first, after)}. Give (first piece, piece after the last)."
            )
        member[word, first:after] = 1.0
    counts = member.sum(dim=0)
    if bool((counts != 1).any()):
        piece = int((counts != 1).nonzero()[0])
        raise OptionError(
            f"{name} must cover each piece once; got piece {piece} in {int(counts[piece])} of "
            f"them. Give special tokens a span of their own."
        )
    return member
