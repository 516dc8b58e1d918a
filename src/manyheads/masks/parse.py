"""A mask from its text, so that a command line and a config file can name one."""

import ast
from typing import Any

import torch

from manyheads.errors import ManyheadsError, MaskError, nearest
from manyheads.masks.base import Mask

# A function or a tensor of bools has no place in a text.
UNWRITABLE = {"Rule", "Dense"}
LONGEST = 2000


def _writable() -> dict[str, type[Mask]]:
    """The masks that are made of numbers, words and masks."""
    from manyheads.masks import MASKS  # the family's list, which stands above its files

    return {name: mask for name, mask in MASKS.items() if name not in UNWRITABLE}


def parse_mask(text: str) -> Mask:
    """Read a mask as it is written in Python; nothing in the text is ever run.

    Args:
        text: Names of masks with whole numbers, words, None, tuples and lists of them as
            arguments, joined by ``&``, ``|``, ``~`` and parentheses; at most 2000 characters.

    Returns:
        The mask. Numbers become tensors where a mask takes one, as in ``Documents((0, 0, 1))``.

    Raises:
        MaskError: If the text says anything else, or its numbers do not fit the mask.

    Example:
        >>> parse_mask("Causal() & (Window(8) | Global(0))")
        Causal() & (Window(8) | Global(0))
        >>> parse_mask("Padding(lengths=(3, 5))")
        Padding(lengths=[3, 5])
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        got = type(text).__name__ if not isinstance(text, str) else f"{len(text)} characters"
        raise MaskError(
            f"text must be at most {LONGEST} characters; got {got}. Build a longer mask in Python."
        )
    try:
        return _mask(ast.parse(" ".join(text.split()), mode="eval").body, text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        if isinstance(error, ManyheadsError):
            raise
        reason = getattr(error, "msg", "it is nested too deep")
        raise MaskError(
            f"text must be a mask as written in Python; got {_short(text)} ({reason}). Write, for "
            f'one, "Causal() & Window(256)".'
        ) from None


def _mask(node: ast.expr, text: str) -> Mask:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _mask(left, text) & _mask(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _mask(left, text) | _mask(right, text)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_mask(operand, text)
        case ast.Call(func=ast.Name(id=name)) if name in _writable():
            return _call(name, node, text)
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            raise MaskError(
                f"Masks must be joined by & | ~; got {_short(ast.unparse(node))}. Write & for and, "
                f"| for or, ~ for not."
            )
        case ast.Name(id=name) if name in _writable():
            raise MaskError(
                f"A mask must be called; got {_short(name)} in {_short(text)}. Write {name}(), "
                f"with its numbers between the parentheses."
            )
    called = node.func if isinstance(node, ast.Call) else node
    word = called.id if isinstance(called, ast.Name) else ""
    raise MaskError(
        f"text must join {', '.join(_writable())} by & | ~ and parentheses; got "
        f"{_short(ast.unparse(node))} in {_short(text)}. "
        f"{nearest(word, _writable(), 'Build any other mask in Python.')}"
    )


def _call(name: str, call: ast.Call, text: str) -> Mask:
    if any(keyword.arg is None for keyword in call.keywords):
        raise MaskError(
            f"{name} must have its arguments written out; got ** in {_short(text)}. Name them."
        )
    arguments = [_argument(each, text) for each in call.args]
    named = {str(each.arg): _argument(each.value, text) for each in call.keywords}
    if name == "Documents":
        arguments = [_row(each) for each in arguments]
        named = {key: _row(value) for key, value in named.items()}
    try:
        return _writable()[name](*arguments, **named)
    except ManyheadsError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        # Python's own words about a missing or unknown argument name its constructor.
        reason = str(error).replace(f"{name}.__init__()", name)
        raise MaskError(
            f"{name} must have the arguments of its constructor; got {_short(text)}: {reason}. "
            f"See help(manyheads.{name})."
        ) from None


def _argument(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | str() as plain):
            return plain
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_argument(element, text) for element in elements)
        case ast.Call() | ast.BinOp() | ast.UnaryOp():
            return _mask(node, text)
    raise MaskError(
        f"An argument must be a whole number, a word, None, a tuple, or a mask; got "
        f"{_short(ast.unparse(node))} in {_short(text)}. Build any other mask in Python."
    )


def _row(numbers: Any) -> Any:
    """The (batch, length) tensor that documents are told by; one row stands for a batch of one."""
    if not isinstance(numbers, tuple):
        return numbers
    ids = torch.tensor(numbers)
    return ids[None] if ids.ndim == 1 else ids


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 60 else flat[:57] + "...")
