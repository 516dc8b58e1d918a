"""Calls of attention, drawn at random from a description: what backends are tried with."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.functional import Call
from manyheads.functional.call import Need, prepare
from manyheads.masks import (
    Causal,
    Dense,
    Documents,
    Global,
    Mask,
    Padding,
    PerHead,
    Prefix,
    Rule,
    Window,
)

BIASES = {
    "pairs": (1, 1, 1, 1),
    "heads": (0, 1, 1, 1),
    "keys": (0, 1, 0, 1),
    "queries": (1, 0, 1, 0),
    "all": (0, 0, 0, 0),
}
"""The axes (batch, heads, q_len, kv_len) along which a bias changes, by a name for each."""


USUAL: dict[str, Any] = {
    **dict.fromkeys(("bias", "scale", "softcap", "sink_logits", "q_pos", "kv_pos")),
    "dropout": 0.0,
    "need": "output",
}
"""The arguments of `prepare` where a case says nothing of them."""


@dataclass(frozen=True)
class BackendCase:
    """One call of attention that a backend is tried with.

    Args:
        q_len: How many queries; the next six are sizes too.
        kv_len: How many keys.
        batch: How many sequences.
        num_heads: How many query heads.
        num_kv_heads: How many heads the keys have.
        head_dim: The width of queries and keys.
        value_dim: The width of values.
        mask: Which of `masks`.
        bias: Which of `BIASES`; None for no bias.
        hidden: Whether the bias also hides a third of the pairs, and whole rows, by -inf.
        options: Further arguments of `attention`.
        void: What absent tokens hold: a number, or None to leave them as they are.
        layout: Whether q, k, v are "plain", "strided" views or "expanded" from fewer heads.
        need: What is asked for.
        grad: Whether gradients are asked for.
        dtype: Of q, k, v and bias.
        device: Where they are.
        seed: Seeds the numbers that are drawn.
    """

    q_len: int = 7
    kv_len: int = 7
    batch: int = 2
    num_heads: int = 4
    num_kv_heads: int = 4
    head_dim: int = 8
    value_dim: int = 8
    mask: str = "none"
    bias: str | None = None
    hidden: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    void: float | None = None
    layout: str = "plain"
    need: Need = "output"
    grad: bool = True
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    seed: int = 0

    def __str__(self) -> str:
        said = {"q_len", "kv_len", "mask", "dtype", "seed"}
        return ", ".join(
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if field.name in said or getattr(self, field.name) != field.default
        )


@dataclass(frozen=True)
class Inputs:
    """The tensors of one call, by name, and the arguments beside them."""

    case: BackendCase
    tensors: dict[str, Tensor]
    arguments: dict[str, Any]

    def call(self, tensors: dict[str, Tensor]) -> Call:
        """The call, prepared as the front door does it."""
        usual = USUAL | {"need": self.case.need}
        return prepare(**(usual | self.arguments | tensors))


def masks(case: BackendCase) -> dict[str, Mask | Tensor | None]:
    """Every family of masks, made for the sizes of a case."""
    draw = torch.Generator().manual_seed(case.seed)
    batch, heads, q_len, kv_len = case.batch, case.num_heads, case.q_len, case.kv_len
    keep = torch.rand(batch, kv_len, generator=draw) > 0.4
    ids = torch.randint(0, 3, (batch, kv_len), generator=draw)
    query_ids = torch.randint(0, 3, (batch, q_len), generator=draw)
    pairs = torch.rand(batch, heads, q_len, kv_len, generator=draw) > 0.5
    rows = torch.rand(q_len, kv_len, generator=draw) > 0.5
    pairs[:1] = False  # a sample that sees nothing
    pairs[:, -1] = False  # a head that sees nothing
    each = (Causal(), Causal() & Window(3), ~Causal(), Padding(keep))
    return {
        "none": None,
        "causal": Causal(),
        "window": Causal() & Window(3),
        "two-sided window": Window(before=1, after=2),
        "global": Causal() & (Window(2) | Global((0, 3))),
        "global tags": Window(2) | Global(keep, query_ids == 0),
        "prefix": Causal() | Prefix(2),
        "prefix lengths": Causal() | Prefix(ids.sum(dim=-1) % 4),
        "padding": Padding(keep),
        "causal padding": Causal() & Padding(keep),
        "no keys at all": Padding(torch.zeros(batch, kv_len, dtype=torch.bool)),
        "documents": Documents(ids, query_ids),
        "causal documents": Causal() & Documents(ids, query_ids),
        "future only": ~Causal(),
        "rule": Rule(_shifted_by_head, "shifted by head"),
        "heads of their own": PerHead(tuple(each[h % len(each)] for h in range(heads))),
        "dense": rows,
        "dense in four": Dense(pairs),
        "rows of a head": pairs[:, :1],
    }


def draw(case: BackendCase) -> Inputs:
    """The inputs that a case describes."""
    generator = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sizes = {
        "q": (case.batch, case.num_heads, case.q_len, case.head_dim),
        "k": (case.batch, case.num_kv_heads, case.kv_len, case.head_dim),
        "v": (case.batch, case.num_kv_heads, case.kv_len, case.value_dim),
    }
    tensors = {name: normal(*size).to(case.device, case.dtype) for name, size in sizes.items()}
    if case.bias is not None:
        whole = (case.batch, case.num_heads, case.q_len, case.kv_len)
        shape = [
            size if changes else 1 for size, changes in zip(whole, BIASES[case.bias], strict=True)
        ]
        bias = normal(*shape)
        if case.hidden:
            bias[torch.rand(*shape, generator=generator) < 0.3] = -torch.inf
            bias[..., : max(1, shape[2] // 3), :] = -torch.inf
        tensors["bias"] = bias.to(case.device, case.dtype)
    mask = masks(case)[case.mask]
    arguments: dict[str, Any] = {"mask": mask if mask is None else mask.to(case.device)}
    for name, value in case.options:
        moves = isinstance(value, Tensor | nn.Module)
        if name == "sink_logits":
            tensors[name] = value.to(case.device, case.dtype)
        else:
            arguments[name] = value.to(case.device) if moves else value
    if case.void is not None:
        _fill_void(case.void, tensors, arguments)
    tensors = {name: _laid_out(tensor, case.layout) for name, tensor in tensors.items()}
    if case.grad:
        tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    return Inputs(case, tensors, arguments)


def _fill_void(void: float, tensors: dict[str, Tensor], arguments: dict[str, Any]) -> None:
    call = prepare(**(USUAL | arguments | tensors))
    if call.mask is None:
        return
    for names, tokens in ((("q",), call.mask.q), (("k", "v"), call.mask.kv)):
        if tokens.absent is not None:
            for name in names:
                gone = tokens.absent[:, None, :, None]
                tensors[name] = tensors[name].masked_fill(gone, void)


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    if layout == "expanded" and tensor.numel():
        return tensor[:1, :1].expand(tensor.shape)
    if layout == "strided" and tensor.ndim == 4:
        return tensor.repeat_interleave(2, dim=-1).mT.contiguous().mT[..., ::2]
    return tensor


def _shifted_by_head(head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q + head) % 3 != kv % 3
