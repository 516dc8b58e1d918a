"""Performer: the softmax kernel estimated by random features, in linear time."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.functional.attention import K, Output, Q, V
from manyheads.functional.precision import full_precision
from manyheads.functional.running_sums import RunningSums, attend_by_features
from manyheads.functional.simple import repeat_heads, simplify_call
from manyheads.masks import Mask
from manyheads.shapes import check_count

Directions = Float[Tensor, "features head_dim"]


def orthogonal_directions(
    num_features: int,
    head_dim: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Directions:
    """Draw Gaussian directions of which every head_dim stand at right angles.

    Each alone is a standard Gaussian vector, so what they estimate stays unbiased; together they
    err less than independent ones.

    Source:
        Choromanski et al. 2021, section 2.4 (arXiv:2009.14794).
    """
    blocks = max(1, math.ceil(num_features / head_dim))
    shape = (blocks, head_dim, head_dim)
    q, r = torch.linalg.qr(torch.randn(shape, generator=generator, device=device))
    # Only with these signs is the rotation uniform, and each direction free of bias.
    q = q * torch.sign(r.diagonal(dim1=-2, dim2=-1))[:, None, :]
    lengths = torch.randn(shape, generator=generator, device=device).norm(dim=-1, keepdim=True)
    return (q.mT * lengths).flatten(0, 1)[:num_features]


class RandomFeatures:
    """The directions of a Performer, and when they are drawn anew.

    A model that trains on one draw learns to live with its error; redrawing keeps it close to the
    softmax. Nothing is drawn but here and in `redraw`, and when `step` says so.

    Args:
        head_dim: Width of a head.
        num_features: How many; None means head_dim * log(head_dim), rounded up. The error falls
            with its root.
        redraw_every: After how many steps they are drawn anew; None keeps them.
        generator: Where to draw from; None means torch's own.
        device: Where the directions live; it must be the generator's.

    Attributes:
        directions: (num_features, head_dim), in fp32.
        steps: How many steps were counted since the last draw.

    Source:
        Choromanski et al. 2021, sections 2.4 and 4.2 (arXiv:2009.14794).

    Example:
        >>> import torch, manyheads as mh
        >>> features = mh.RandomFeatures(4, 16, redraw_every=2)
        >>> before = features.directions
        >>> [features.step() for _ in range(4)]
        [False, True, False, True]
        >>> torch.equal(features.directions, before)
        False
    """

    def __init__(
        self,
        head_dim: int,
        num_features: int | None = None,
        *,
        redraw_every: int | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_count("head_dim", head_dim)
        if num_features is None:
            num_features = max(1, math.ceil(head_dim * math.log(head_dim)))
        check_count("num_features", num_features)
        if redraw_every is not None:
            check_count("redraw_every", redraw_every)
        self.redraw_every, self.generator, self.steps = redraw_every, generator, 0
        self.directions = orthogonal_directions(
            num_features, head_dim, generator=generator, device=device
        )

    def redraw(self) -> None:
        """Draw all directions anew, and count steps from 0."""
        num_features, head_dim = self.directions.shape
        self.directions = orthogonal_directions(
            num_features, head_dim, generator=self.generator, device=self.directions.device
        )
        self.steps = 0

    def step(self) -> bool:
        """Count a step of training, and redraw if it is time; returns whether it was."""
        self.steps += 1
        due = self.redraw_every is not None and self.steps >= self.redraw_every
        if due:
            self.redraw()
        return due

    def expected_error(self, q: Q, k: K, *, scale: float | None = None) -> float:
        """How far the estimate of exp(scale * q.k) is off, as a share of it, for a typical pair.

        The relative standard deviation of one pair is sqrt((exp(scale * |q + k|²) - 1) / features)
        (independent directions; orthogonal ones do no worse). This is its median over the pairs of
        up to 512 queries and keys.
        Above 1 the norms are too big for so many features, and the output means little: shrink q
        and k, or leave this method.

        Source:
            Choromanski et al. 2021, lemma 2 (arXiv:2009.14794).
        """
        call = simplify_call("performer_attention", q, k, k, None, scale=scale)
        _check_scale(call.scale)
        some_q, some_k = (x[:, :, :: max(1, x.shape[2] // 512)] for x in (call.q, call.k))
        with full_precision(q.device):
            sums = torch.cdist(some_q, -repeat_heads(some_k, q.shape[1]))
        norms = sums.square() * call.scale
        median = norms.median().item() if norms.numel() else 0.0
        # Beyond 700 exp has no number for it.
        return math.sqrt(math.expm1(min(median, 700.0)) / len(self.directions))

    def __repr__(self) -> str:
        num_features, head_dim = self.directions.shape
        return f"RandomFeatures({head_dim}, {num_features}, redraw_every={self.redraw_every})"


def performer_attention(
    q: Q,
    k: K,
    v: V,
    mask: Mask | None = None,
    *,
    features: RandomFeatures | Tensor,
    scale: float | None = None,
    state: RunningSums | None = None,
    chunk: int = 128,
) -> Output:
    """Estimate softmax attention by random features, in time and memory linear in the length.

    exp(x.y) is the mean over Gaussian directions w of f(x) f(y), f(x) = exp(w.x - |x|²/2), which
    is above 0; so q.k needs but sums over the keys, x and y being q and k times sqrt(scale). The
    estimate of exp(scale * q.k) is unbiased, and its error grows like exp(scale * |q + k|² / 2):
    ask `RandomFeatures.expected_error`.

    Exponents are kept in range by the largest of each query, and by one that all keys of a head
    share. Both cancel in the division; a maximum of each key of its own, as some implementations
    subtract it, weighs the keys anew. No epsilon is added.

    Args:
        q: Queries.
        k: Keys; each serves ``num_heads / num_kv_heads`` query heads, neighbours first.
        v: Values.
        mask: None, ``Causal()``, ``Padding(...)`` or both joined by ``&``.
        features: The directions, held by a `RandomFeatures`, or a tensor (features, head_dim).
        scale: Multiplies q.k, 0 or more; None means ``head_dim ** -0.5``.
        state: What `performer_attention_with_state` returned for earlier keys.
        chunk: How many keys of a causal call are met pair by pair before they join the sums; a
            matter of speed alone.

    Returns:
        The mixed values in q's dtype, summed in fp32 at least. A query that sees nobody gets 0,
        with gradient 0.

    Raises:
        MaskError: If the mask is any other.
        ShapeError: If a shape does not fit (and DTypeError, DeviceError likewise).
        OptionError: If scale is below 0 or chunk no number of keys.

    Source:
        Choromanski et al. 2021, eq. 5 and 7 and algorithm 1 (arXiv:2009.14794).

    Example:
        >>> import torch, manyheads as mh
        >>> q, k, v = torch.randn(3, 1, 2, 50, 16).mul(0.5)
        >>> features = mh.RandomFeatures(16, 512)
        >>> error = mh.performer_attention(q, k, v, features=features) - mh.attention(q, k, v)
        >>> bool(error.abs().mean() < 0.05)
        True
    """
    return performer_attention_with_state(
        q, k, v, mask, features=features, scale=scale, state=state, chunk=chunk
    )[0]


def performer_attention_with_state(
    q: Q,
    k: K,
    v: V,
    mask: Mask | None = None,
    *,
    features: RandomFeatures | Tensor,
    scale: float | None = None,
    state: RunningSums | None = None,
    chunk: int = 128,
) -> tuple[Output, RunningSums]:
    """Do `performer_attention` and return what must be kept of the keys, which never grows.

    Arguments and errors are those of `performer_attention`; the mask speaks of the new tokens
    only, and the features must be those that the state was made with.

    Returns:
        The output, and the state for the next call.
    """
    chunk = check_count("chunk", chunk)
    call = simplify_call("performer_attention", q, k, v, mask, scale=scale)
    _check_scale(call.scale)
    directions = _directions(features, call.q)
    with full_precision(q.device):
        queries = _exponents(call.q, directions, call.scale)
        # Of each query its own: it weighs all keys alike.
        queries = torch.exp(queries - queries.detach().amax(dim=-1, keepdim=True))
        keys, absent = _exponents(call.k, directions, call.scale), call.absent_rows
        if absent is not None:
            keys = keys.masked_fill(absent, -torch.inf)
        output, state = attend_by_features(
            queries, keys, call.v, state, causal=call.causal, chunk=chunk, exponents=True
        )
    return output.to(call.dtype), state


def _exponents(x: Tensor, directions: Tensor, scale: float) -> Tensor:
    x = x * scale**0.5
    return x @ directions.mT - x.square().sum(dim=-1, keepdim=True) / 2


def _check_scale(scale: float) -> None:
    if scale < 0:
        raise OptionError(
            f"scale must be 0 or more for performer_attention; got scale={scale}. Its root goes to "
            f"q and to k: turn the sign of q instead."
        )


def _directions(features: RandomFeatures | Tensor, q: Tensor) -> Tensor:
    directions = features.directions if isinstance(features, RandomFeatures) else features
    if not isinstance(directions, Tensor) or directions.ndim != 2 or not len(directions):
        got = tuple(directions.shape) if isinstance(directions, Tensor) else features
        raise ShapeError(
            f"features must be a RandomFeatures or a tensor (features, head_dim); got "
            f"features={got!r}. Write RandomFeatures({q.shape[3]}) once and hand it over each time."
        )
    if directions.shape[1] != q.shape[3]:
        raise ShapeError(
            f"features must have the head_dim of q, {q.shape[3]}; got head_dim="
            f"{directions.shape[1]}. Write RandomFeatures({q.shape[3]})."
        )
    return directions.to(device=q.device, dtype=q.dtype)
