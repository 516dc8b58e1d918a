"""An attention layer of Hugging Face, called as its model calls it, and ours beside it."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import DynamicCache, PretrainedConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

import manyheads as mh
from manyheads.cache import Cache

# Of rows of 23 tokens; those of the second begin later, as left padding does.
FIRST, LENGTH = (0, 5), 23


class Theirs:
    """One of their layers with its rotary and its masks.

    Args:
        attention: Their layer.
        config: Their config.
        rotary: Makes their cosines and sines.
        sliding: Whether their layer has a sliding window.
    """

    def __init__(
        self,
        attention: nn.Module,
        config: PretrainedConfig,
        rotary: nn.Module | None = None,
        *,
        sliding: bool = False,
    ) -> None:
        self.attention, self.config, self.rotary = attention.eval(), config, rotary
        self.sliding = sliding
        for parameter in attention.parameters():
            nn.init.normal_(parameter, std=0.3)

    def __call__(
        self, x: Tensor, keep: Tensor, cache: DynamicCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Their output and weights of the last tokens of those of which ``keep`` speaks."""
        positions = (keep.cumsum(-1) - 1).clamp(min=0)[:, -x.shape[1] :]
        turns, mask = self.rotary(x, positions), self.mask(x, keep, cache)
        return self.attention(x, position_embeddings=turns, attention_mask=mask, cache=cache)[:2]

    def mask(self, x: Tensor, keep: Tensor, cache: DynamicCache | None) -> Tensor:
        """What they add to the scores."""
        make = create_sliding_window_causal_mask if self.sliding else create_causal_mask
        return make(
            config=self.config,
            inputs_embeds=x,
            attention_mask=keep.long(),
            cache=cache,
            position_ids=(keep.cumsum(-1) - 1).clamp(min=0)[:, -x.shape[1] :],
        )


def copy_into(ours: nn.Module, state: dict[str, Tensor]) -> None:
    """Load weights, of which none may be missing or left over."""
    ours.load_state_dict(state, strict=True)
    ours.eval()


def renamed(theirs: nn.Module, names: dict[str, str]) -> dict[str, Tensor]:
    """Their weights by our names; the beginning of a name decides."""
    state = {}
    for name, value in theirs.state_dict().items():
        old = max((old for old in names if name.startswith(old)), key=len, default="")
        state[names.get(old, "") + name[len(old) :]] = value.clone()
    return state


@torch.no_grad()
def assert_alike(
    ours: nn.Module,
    theirs: Theirs,
    mask: mh.Mask,
    *,
    bias: mh.Bias | None = None,
    cache: Callable[[], Cache] = mh.GrowingCache,
    weights: bool = True,
    sizes: tuple[int, ...] = (LENGTH,),
    padded: bool = False,
) -> None:
    """Compare outputs of real tokens, and weights of a single pass, in fp32 to 1e-5.

    Args:
        ours: Our layer, with their weights.
        theirs: Their layer.
        mask: What our layer is told.
        bias: What is added to our scores.
        cache: Ours; theirs is the one that their models take.
        weights: Whether theirs mean the same as ours.
        sizes: Lengths of the chunks of a text; several mean caches.
        padded: Whether the second row begins later.
    """
    x = torch.randn(2, LENGTH, theirs.config.hidden_size)
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    if padded:
        keep[1, : FIRST[1]] = False
    places = torch.where(keep, keep.cumsum(-1) - 1, -1)
    held = (cache(), DynamicCache(config=theirs.config)) if len(sizes) > 1 else (None, None)
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    for start, end in pairwise(ends):
        part, now = x[:, start:end], keep[:, start:end]
        positions = places[:, start:end] if padded else None
        expected, their_weights = theirs(part, keep[:, :end], held[1])
        out, own_weights = ours.with_weights(
            part, mask=mask, positions=positions, cache=held[0], bias=bias
        )
        assert_close(out[now], expected[now], atol=1e-5, rtol=1e-5)
        if weights and held[0] is None:
            rows = now[:, None].expand(own_weights.shape[:3])
            assert_close(own_weights[rows], their_weights[rows], atol=1e-5, rtol=1e-5)


CALLS: dict[str, dict[str, object]] = {
    "whole": {},
    "padded": {"padded": True},
    "cached": {"sizes": (12, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)},
    "padded and cached": {"sizes": (12, 7, 1, 1, 1, 1), "padded": True},
}
"""What a model does: train, or read a batch; write; and do both with texts of all lengths."""
