"""LSH attention: each token meets those whose hash puts them near it."""

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.functional.attention import Output, Q, V
from manyheads.functional.precision import full_precision
from manyheads.functional.reference import softmax_rows
from manyheads.functional.simple import repeat_heads, simplify_call
from manyheads.masks import Mask
from manyheads.shapes import check_count, check_tensor

# A token that sees another gives itself no weight: exp of this is 0, and -inf would leave nothing
# to a token that is alone.
LAST_RESORT = -1e5
# The bucket of those who are not there.
LAST = torch.iinfo(torch.int64).max
# More buckets than this are pairs of two smaller hashes, so that hashing too stays near linear.
ONE_HASH = 128


def lsh_attention(
    q: Q,
    k: Q,
    v: V,
    mask: Mask | None = None,
    *,
    bucket_size: int = 64,
    rounds: int = 4,
    itself: Literal["last resort", "seen"] = "last resort",
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> Output:
    """Attend to the tokens that a random hash finds alike, in time near linear in the length.

    Queries and keys are shared: k must be q itself, and scores are scale * q_i . q_j / |q_j|. In
    each round the tokens of a head are hashed to buckets, sorted by bucket and place, and cut into
    chunks of bucket_size; a token sees its own chunk, the one before, and without ``Causal()`` the
    one behind. Over all rounds this is the exact softmax over every key that some round shows, each
    counted once.

    No weight ever falls on the future of a causal call; but where chunks end, and so which of the
    earlier keys are met, depends on the hashes of all tokens.

    With bucket_size >= length there is one bucket, and this is exact attention over q, q / |q|
    and v.

    Args:
        q: Queries, and keys.
        k: The same tensor: a hash sends a token's query and key to one bucket only if they are one.
        v: Values; each serves ``num_heads / num_kv_heads`` query heads, neighbours first.
        mask: None, ``Causal()``, ``Padding(...)`` or both joined by ``&``. Padding is no query
            either: its output is 0.
        bucket_size: How many tokens a chunk has, and a bucket on average.
        rounds: How often the tokens are hashed; more find more of the keys that matter.
        itself: Whether a token's own key, which is always the most alike, is seen like any other,
            or only where it sees none but itself, as in Reformer.
        scale: Multiplies the scores.
        generator: Where the hashes are drawn from; None means torch's own.

    Returns:
        The mixed values in q's dtype, summed in fp32 at least. A query that sees nobody gets 0,
        with gradient 0.

    Raises:
        MaskError: If the mask is any other.
        ShapeError: If k is not q, or a shape does not fit (and DTypeError, DeviceError likewise).
        OptionError: If another argument is out of range.

    Source:
        Kitaev et al. 2020, section 2 (arXiv:2001.04451). They also look one chunk back without
        causality, and count a key once for each round that shows it.

    Example:
        >>> import torch, manyheads as mh
        >>> q, v = torch.randn(2, 1, 2, 100, 16)
        >>> mh.lsh_attention(q, q, v, mh.Causal(), bucket_size=8).shape
        torch.Size([1, 2, 100, 16])
        >>> one = mh.lsh_attention(q, q, v, bucket_size=100, itself="seen")
        >>> unit = torch.nn.functional.normalize(q, dim=-1)
        >>> torch.allclose(one, mh.attention(q, unit, v, scale=1.0), atol=1e-5)
        True
    """
    _check(q, k, itself)
    check_count("bucket_size", bucket_size)
    check_count("rounds", rounds)
    q, v = check_tensor("q", q), check_tensor("v", v)
    shares = v.ndim == q.ndim == 4 and v.shape[1] and q.shape[1] % v.shape[1] == 0
    v = repeat_heads(v, q.shape[1]) if shares else v
    call = simplify_call("lsh_attention", q, k, v, mask, scale=scale)
    length, causal = q.shape[2], call.causal
    with full_precision(q.device):
        # k is q with 0 for what is absent; whole chunks, the rest of the last one absent too.
        size = min(bucket_size, max(length, 1))
        rest = -length % size
        x, v = (F.pad(t, (0, 0, 0, rest)) for t in (call.k, call.v))
        absent = x.new_zeros(1, length, dtype=torch.bool) if call.absent is None else call.absent
        absent = F.pad(absent, (0, rest), value=True)
        buckets = _hash(x.detach(), x.shape[2] // size, rounds, generator)
        chunks = _sort(buckets.masked_fill(absent[:, None, None], LAST), size)
        output = _attend(x, v, absent, chunks, causal, itself == "seen", call.scale)
        return output[:, :, :length].to(call.dtype)


def _check(q: Tensor, k: Tensor, itself: str) -> None:
    if k is not q:
        raise ShapeError(
            "k must be q itself for lsh_attention; got another tensor. A hash sends a query and "
            "the keys like it to one bucket only where both are made alike: project once, and "
            "write lsh_attention(q, q, v)."
        )
    if itself not in ("last resort", "seen"):
        raise OptionError(
            f"itself must be 'last resort' or 'seen'; got itself={itself!r}. It says what a token "
            f"sees of its own key."
        )


class Chunks(NamedTuple):
    """Where the tokens of each round lie.

    Args:
        tokens: (batch, heads, rounds, chunks, chunk), the index of the token at each place.
        chunk_of: (batch, heads, rounds, length), the chunk in which each token lies.
    """

    tokens: Tensor
    chunk_of: Tensor


def _hash(x: Tensor, count: int, rounds: int, generator: torch.Generator | None) -> Tensor:
    """The bucket of each token in each round, (batch, heads, rounds, length).

    A random rotation, and which of its axes, to either side, a token lies nearest to.
    """
    batch, heads, length, width = x.shape
    buckets = x.new_zeros(batch, heads, rounds, length, dtype=torch.int64)
    if count <= 1:
        return buckets
    sizes = [count] if count <= ONE_HASH else [math.isqrt(count), count // math.isqrt(count)]
    for size in sizes:
        shape = (heads, rounds, width, (size + 1) // 2)
        axes = torch.randn(shape, generator=generator, device=x.device, dtype=x.dtype)
        along = x[:, :, None] @ axes
        buckets = buckets * 2 * shape[3] + torch.cat((along, -along), dim=-1).argmax(dim=-1)
    return buckets


def _sort(buckets: Tensor, size: int) -> Chunks:
    order = buckets.argsort(dim=-1, stable=True)
    chunk_of = order.argsort(dim=-1) // size
    return Chunks(order.unflatten(3, (-1, size)), chunk_of)


def _attend(
    x: Tensor, v: Tensor, absent: Tensor, chunks: Chunks, causal: bool, itself: bool, scale: float
) -> Tensor:
    tokens = chunks.tokens
    neighbours = _neighbours(tokens, causal)
    q, k = _take(x, tokens), _take(F.normalize(x, dim=-1), neighbours.clamp(min=0))
    scores = q @ k.mT * scale
    scores = scores - _times_met(chunks, neighbours, causal).to(x.dtype).log()
    queries, keys = tokens[..., :, None], neighbours[..., None, :]
    if not itself:
        scores = scores + LAST_RESORT * (queries == keys).to(x.dtype)
    there = _there(absent, neighbours)[..., None, :] & _there(absent, tokens)[..., :, None]
    seen = there & (keys <= queries) if causal else there
    weights, lse = softmax_rows(scores.masked_fill(~seen, -torch.inf))
    mixed = weights @ _take(v, neighbours.clamp(min=0))
    # Back to the order of the tokens, each round weighed by what its keys weigh together.
    place = tokens.flatten(3).argsort(dim=-1)
    shares, _ = softmax_rows(lse.flatten(3).gather(3, place).movedim(2, -1))
    mixed = mixed.flatten(3, 4).gather(3, place[..., None].expand(*place.shape, v.shape[3]))
    return (mixed * shares.movedim(-1, 2)[..., None]).sum(dim=2)


def _neighbours(tokens: Tensor, causal: bool) -> Tensor:
    """The tokens that each chunk meets, (..., chunks, 2 or 3 chunks); -1 where there is none."""
    sides = [F.pad(tokens, (0, 0, 1, 0), value=-1)[:, :, :, :-1], tokens]
    if not causal:
        sides.append(F.pad(tokens, (0, 0, 0, 1), value=-1)[:, :, :, 1:])
    return torch.cat(sides, dim=-1)


def _times_met(chunks: Chunks, neighbours: Tensor, causal: bool) -> Tensor:
    """In how many rounds each pair meets: at least 1, in the one where it stands."""
    rounds = chunks.tokens.shape[2]
    if rounds == 1:
        return neighbours.new_ones(())
    met: Tensor | int = 0
    for chunk_of in chunks.chunk_of.unbind(2):
        of_all = chunk_of[:, :, None].expand(-1, -1, rounds, -1)
        q, k = (
            of_all.gather(3, x.flatten(3)).view(x.shape)
            for x in (chunks.tokens, neighbours.clamp(min=0))
        )
        apart = q[..., :, None] - k[..., None, :]
        met = met + ((apart >= (0 if causal else -1)) & (apart <= 1))
    return torch.as_tensor(met).clamp(min=1)


def _take(x: Tensor, tokens: Tensor) -> Tensor:
    # (batch, heads, length, width) by (batch, heads, rounds, chunks, n) -> (..., n, width)
    flat = tokens.flatten(2)[..., None].expand(-1, -1, -1, x.shape[3])
    return x.gather(2, flat).view(*tokens.shape, x.shape[3])


def _there(absent: Tensor, tokens: Tensor) -> Tensor:
    batch, heads = tokens.shape[:2]
    of_all = ~absent[:, None].expand(batch, heads, -1)
    there = of_all.gather(2, tokens.clamp(min=0).flatten(2)).view(tokens.shape)
    return there & (tokens >= 0)
