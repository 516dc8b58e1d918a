"""Two modules with the same weights, torch's and ours, and what they must agree in."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import manyheads as mh

ENCODER = {
    "self_attn.": "self_attention.",
    "linear1.": "feed_forward.up.",
    "linear2.": "feed_forward.down.",
    "norm1.": "attention_residual.norm.",
    "norm2.": "feed_forward_residual.norm.",
}
DECODER = {
    "self_attn.": "self_attention.",
    "multihead_attn.": "cross_attention.",
    "linear1.": "feed_forward.up.",
    "linear2.": "feed_forward.down.",
    "norm1.": "self_residual.norm.",
    "norm2.": "cross_residual.norm.",
    "norm3.": "feed_forward_residual.norm.",
}
"""What torch calls the parts of its layers, and what they are called here."""

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def randomised(module: nn.Module) -> nn.Module:
    """The module with every parameter drawn anew, biases and norms too, which begin at 0 and 1."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in module.parameters():
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_((weight.ndim == 1) + drawn / weight.shape[-1] ** 0.5)
    return module


def close(got: Tensor, expected: Tensor) -> None:
    """Equal to 1e-10 in float64 and 1e-5 in fp32, as a share of the largest number."""
    size = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(got, expected, rtol=0, atol=size * TOLERANCE[expected.dtype])


@dataclass(frozen=True)
class Twins:
    """Our module with the weights of torch's.

    Args:
        ours: Is given the weights.
        theirs: Has them; they are drawn anew.
        renamed: Their parameters, by our names.
    """

    ours: nn.Module
    theirs: nn.Module
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]] = field(default=dict)

    def __post_init__(self) -> None:
        randomised(self.theirs)
        self.ours.load_state_dict(self.renamed(dict(self.theirs.named_parameters())))

    def agree(
        self,
        ours: Callable[..., Tensor],
        theirs: Callable[..., Tensor],
        *inputs: Tensor,
        real: Tensor | None = None,
    ) -> None:
        """Compare outputs, and gradients by inputs and parameters.

        Args:
            ours: Calls our module with the inputs.
            theirs: Calls theirs likewise.
            inputs: Streams.
            real: bool (batch, length); the rows that are compared, all if None.
        """
        results, gradients = _with_gradients(self.ours, ours, inputs, real)
        right_results, right_gradients = _with_gradients(self.theirs, theirs, inputs, real)
        for result, right in zip(results, right_results, strict=True):
            close(result, right)
        # Loaded as if they were weights, their gradients are cut and named as ours.
        reader = copy.deepcopy(self.ours)
        reader.load_state_dict(self.renamed(right_gradients))
        for name, right in reader.named_parameters():
            close(gradients[name], right.detach())
        # Without gradients torch may take another path.
        with torch.no_grad():
            for module in (self.ours, self.theirs):
                module.eval()
            rows = slice(None) if real is None else real
            close(ours(*inputs)[rows], theirs(*inputs)[rows])


def _with_gradients(
    module: nn.Module, call: Callable[..., Tensor], inputs: tuple[Tensor, ...], real: Tensor | None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The output and the gradients by inputs, and those by parameters, by name."""
    module.train().zero_grad()
    leaves = [x.clone().requires_grad_() for x in inputs]
    output = call(*leaves)
    rows = output if real is None else output[real]
    rows.backward(random(*rows.shape, dtype=rows.dtype, seed=9))
    gradients = {name: weight.grad.clone() for name, weight in module.named_parameters()}
    return [rows.detach(), *(leaf.grad for leaf in leaves)], gradients


def rename(names: dict[str, str], state: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in state.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    return renamed


by_encoder_names = partial(rename, ENCODER)
by_decoder_names = partial(rename, DECODER)


@dataclass(frozen=True)
class Masks:
    """The masks of one call as torch takes them, True or -inf = hidden; no row is empty.

    Args:
        attn: (q_len, kv_len) or (batch * heads, q_len, kv_len), bool or float.
        padding: bool (batch, kv_len).
        causal: Whether `attn` is causal, said to torch as a hint and to us as the rule.
    """

    attn: Tensor | None = None
    padding: Tensor | None = None
    causal: bool = False

    def ours(self, num_heads: int) -> mh.Mask | None:
        parts = []
        if self.causal:
            parts.append(mh.Causal())
        elif self.attn is not None:
            parts.append(mh.from_attn_mask(self.attn, num_heads=num_heads))
        if self.padding is not None:
            parts.append(mh.from_key_padding_mask(self.padding))
        return parts[0] & parts[-1] if parts else None

    @property
    def real(self) -> Tensor | None:
        """bool (batch, kv_len): the tokens that are there."""
        return None if self.padding is None else ~self.padding


KINDS = [
    *("nothing", "random", "causal", "one a head", "float"),
    *("padding", "random and padding", "causal and padding"),
]
every_kind = pytest.mark.parametrize("kind", KINDS)


def masks(
    kind: str, batch: int, num_heads: int, q_len: int, kv_len: int, *, seed: int = 5
) -> Masks:
    """Random masks of a kind, in which every query sees the first key, which is real."""
    generator = torch.Generator().manual_seed(seed)

    def hidden(*shape: int) -> Tensor:
        drawn = torch.rand(*shape, generator=generator) < 0.4
        drawn[..., 0] = False
        return drawn

    attn, padding = None, None
    if "random" in kind:
        attn = hidden(q_len, kv_len)
    elif kind == "one a head":
        attn = hidden(batch * num_heads, q_len, kv_len)
    elif kind == "float":
        attn = torch.zeros(q_len, kv_len).masked_fill(hidden(q_len, kv_len), -torch.inf)
    elif "causal" in kind:
        attn = torch.ones(q_len, kv_len, dtype=torch.bool).triu(1)
    if "padding" in kind:
        padding = hidden(batch, kv_len)
    return Masks(attn, padding, "causal" in kind)
