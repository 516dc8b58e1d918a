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
    chunks of bucket_size; a token sees its own chunk and the one before. Over all rounds this is
    the exact softmax over every key that some round shows, each counted once.

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
        Kitaev et al. 2020, section 2 (arXiv:2001.04451). (Common implementations count a key once
        for each round that shows it.)

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
    bucket_size = check_count("bucket_size", bucket_size)
    rounds = check_count("rounds", rounds)
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
        buckets = buckets.masked_fill(absent[:, None, None], LAST)
        order = [_sort(each, size) for each in buckets.unbind(2)]
        output = _attend(x, v, order, absent, causal, itself == "seen", call.scale)
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


class Round(NamedTuple):
    """Where the tokens of one round lie; -1 means no token.

    Args:
        tokens: (batch, heads, chunks, chunk), which token is at each place.
        chunk_of: (batch, heads, length), the chunk in which each token lies.
    """

    tokens: Tensor
    chunk_of: Tensor

    @property
    def met(self) -> Tensor:
        """The tokens that each chunk meets, (batch, heads, chunks, 2 * chunk)."""
        return _and_before(self.tokens, -1)


def _sort(buckets: Tensor, size: int) -> Round:
    order = buckets.argsort(dim=-1, stable=True)
    # Narrow numbers, since pairs of them are compared.
    narrow = torch.int16 if order.shape[2] // size < 2**15 else torch.int32
    chunk_of = (order.argsort(dim=-1) // size).to(narrow)
    return Round(order.int().unflatten(2, (-1, size)), chunk_of)


def _attend(
    x: Tensor,
    v: Tensor,
    rounds: list[Round],
    absent: Tensor,
    causal: bool,
    itself: bool,
    scale: float,
) -> Tensor:
    """Mix the values of all tokens that some round shows."""
    keys, outputs, lses = F.normalize(x, dim=-1) * scale, [], []
    for place, one in enumerate(rounds):
        k_chunks, v_chunks = (_and_before(_take(t, one.tokens)) for t in (keys, v))
        bias = _bias(one, rounds[:place] + rounds[place + 1 :], absent, causal, itself)
        scores = _take(x, one.tokens) @ k_chunks.mT + bias.to(x.dtype)
        weights, lse = softmax_rows(scores)
        mixed = weights @ v_chunks
        # Back to the order of the tokens.
        back = one.tokens.flatten(2).argsort(dim=-1)
        outputs.append(_take(mixed.flatten(2, 3), back))
        lses.append(lse.flatten(2).gather(2, back))
    # Each round weighs as much as its keys do together.
    shares, _ = softmax_rows(torch.stack(lses, dim=-1))
    mixed = torch.zeros_like(v)
    for output, share in zip(outputs, shares.unbind(-1), strict=True):
        mixed = mixed + output * share[..., None]
    return mixed


@torch.no_grad()
def _bias(one: Round, others: list[Round], absent: Tensor, causal: bool, itself: bool) -> Tensor:
    """What is added to the scores of a round, (batch, heads, chunks, chunk, 2 * chunk)."""
    tokens, met = one.tokens, one.met
    q, k = tokens[..., :, None], met[..., None, :]
    # A key that several rounds show counts once, so each of them gives it its share.
    times = torch.ones_like(q == k, dtype=torch.uint8)
    for other in others:
        q_chunk, k_chunk = (_look_up(other.chunk_of, x) for x in (tokens, met))
        apart = q_chunk[..., :, None] - k_chunk[..., None, :]
        # 0 or 1: in the same chunk, or in the one before.
        times += apart.bitwise_and_(-2).eq_(0).to(torch.uint8)
    bias = times.float().log_().neg_()
    if not itself:
        bias.masked_fill_(q == k, LAST_RESORT)
    absent = absent[:, None].expand(*tokens.shape[:2], -1)
    hidden = _look_up(absent, tokens)[..., :, None] | _look_up(absent, met)[..., None, :] | (k < 0)
    if causal:
        hidden |= k > q
    return bias.masked_fill_(hidden, -torch.inf)


def _and_before(x: Tensor, fill: int | float = 0.0) -> Tensor:
    """Each chunk behind the one before it, (batch, heads, chunks, 2 * chunk, ...)."""
    nothing = torch.full_like(x[:, :, :1], fill)
    return torch.cat((torch.cat((nothing, x[:, :, :-1]), dim=2), x), dim=3)


def _take(x: Tensor, tokens: Tensor) -> Tensor:
    """(batch, heads, length, width) and (batch, heads, ...) -> (batch, heads, ..., width)."""
    batch, heads, length, width = x.shape
    first = torch.arange(batch * heads, device=x.device).view(batch, heads, 1) * length
    # Whole rows, which gather would copy number by number.
    rows = x.flatten(0, 2).index_select(0, (tokens.flatten(2) + first).flatten())
    return rows.view(*tokens.shape, width)


def _look_up(fact: Tensor, tokens: Tensor) -> Tensor:
    """A fact of each token, (batch, heads, length), where the tokens lie."""
    return fact.gather(2, tokens.clamp(min=0).long().flatten(2)).view(tokens.shape)
