"""Attention by features of queries and keys, which needs but sums over the keys."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.errors import ShapeError


class RunningSums(NamedTuple):
    """What is kept of all keys so far: its size does not grow with their number.

    Args:
        sums: (batch, num_kv_heads, features, value_dim + 1), the sum over the keys of their
            features times their values, and in the last column of their features alone.
        peak: (batch, num_kv_heads, 1, 1). The true sums are exp(peak) times `sums`; the factor
            cancels where values are divided by the normaliser.
    """

    sums: Tensor
    peak: Tensor


class Keys(NamedTuple):
    """Keys by their features, and what they hold.

    Args:
        features: (batch, num_kv_heads, kv_len, features), 0 where there is no key; or exponents
            of which features are the exp, -inf where there is no key.
        values: (batch, num_kv_heads, kv_len, value_dim + 1), the last column 1.
        exponents: Whether the features are given by their exponents.
    """

    features: Tensor
    values: Tensor
    exponents: bool

    def part(self, first: int, last: int) -> "Keys":
        """The keys from the first to before the last."""
        features, values = self.features[:, :, first:last], self.values[:, :, first:last]
        return Keys(features, values, self.exponents)


def attend_by_features(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: RunningSums | None = None,
    *,
    causal: bool,
    chunk: int,
    exponents: bool = False,
) -> tuple[Tensor, RunningSums]:
    """Weigh values by the dot products of features, in time linear in the length.

    out_i = sum_j (q_i . k_j) v_j / sum_j (q_i . k_j), over the keys of the state and those of this
    call that query i may see; 0 if there are none.

    Args:
        q: Features of the queries, (batch, num_heads, q_len, features).
        k: Features or exponents of the keys, as in `Keys`.
        v: (batch, num_kv_heads, kv_len, value_dim).
        state: What is kept of earlier keys.
        causal: Whether the queries, as the last q_len of the keys, see nothing later.
        chunk: How many keys of a causal call are met pair by pair before they join the sums.
        exponents: Whether k are exponents.
    """
    keys = Keys(k, F.pad(v, (0, 1), value=1.0), exponents)
    state = _empty(keys) if state is None else _checked(state, keys, causal, q.shape[2])
    if causal:
        mixed, state = _mix_causally(q, keys, state, chunk)
    else:
        state = _add(state, keys)
        mixed = _read(q, state)
    total = mixed[..., -1:]
    return mixed[..., :-1] / total.masked_fill(total == 0, 1.0), state


def _empty(keys: Keys) -> RunningSums:
    batch, heads, _, features = keys.features.shape
    # Of exponents the lowest finite number, since -inf less itself is no number.
    peak = torch.finfo(keys.features.dtype).min if keys.exponents else 0.0
    return RunningSums(
        keys.features.new_zeros(batch, heads, features, keys.values.shape[-1]),
        keys.features.new_full((batch, heads, 1, 1), peak),
    )


def _checked(state: RunningSums, keys: Keys, causal: bool, q_len: int) -> RunningSums:
    empty, kv_len = _empty(keys), keys.features.shape[2]
    if not isinstance(state, RunningSums) or state.sums.shape != empty.sums.shape:
        got = tuple(state.sums.shape) if isinstance(state, RunningSums) else type(state).__name__
        raise ShapeError(
            f"state must be that of the same heads and features, its sums (batch, num_kv_heads, "
            f"features, value_dim + 1) = {tuple(empty.sums.shape)}; got state={got}. Hand over "
            f"what the call before returned, or None to begin."
        )
    if causal and q_len > kv_len:
        raise ShapeError(
            f"q_len must be at most kv_len={kv_len} in a causal call with a state; got "
            f"q_len={q_len}. The sums of a state cannot be told apart: give each query its key."
        )
    return RunningSums(*(x.to(empty.sums.dtype) for x in state))


def _add(state: RunningSums, keys: Keys) -> RunningSums:
    features, peak, sums = keys.features, state.peak, state.sums
    if keys.exponents and features.shape[2]:
        # One peak for all keys of a head: another for each of them would weigh them anew.
        peak = torch.maximum(peak, features.detach().amax(dim=(-2, -1), keepdim=True))
        features, sums = torch.exp(features - peak), sums * torch.exp(state.peak - peak)
    return RunningSums(sums + features.mT @ keys.values, peak)


def _read(q: Tensor, state: RunningSums) -> Tensor:
    batch, heads, q_len, features = q.shape
    # Heads that share keys stand side by side, so their rows stack without copying a sum.
    kv_heads = state.sums.shape[1]
    rows = q.reshape(batch, kv_heads, heads // kv_heads * q_len, features)
    return (rows @ state.sums).reshape(batch, heads, q_len, state.sums.shape[3])


def _mix_causally(
    q: Tensor, keys: Keys, state: RunningSums, chunk: int
) -> tuple[Tensor, RunningSums]:
    q_len, kv_len = q.shape[2], keys.features.shape[2]
    blind, before = max(q_len - kv_len, 0), max(kv_len - q_len, 0)
    state = _add(state, keys.part(0, before))
    mixed, state = _mix_side_by_side(q[:, :, blind:], keys.part(before, kv_len), state, chunk)
    # Queries that stand before every key see nobody.
    return F.pad(mixed, (0, 0, blind, 0)), state


def _mix_side_by_side(
    q: Tensor, keys: Keys, state: RunningSums, chunk: int
) -> tuple[Tensor, RunningSums]:
    length, kv_heads = q.shape[2], state.sums.shape[1]
    if length == 0:
        return _read(q, state), state
    chunk = min(chunk, length)
    # (batch, kv_heads, chunks, chunk, features), and for queries (..., group * chunk, features)
    k = _split(keys.features, chunk, -torch.inf if keys.exponents else 0.0)
    v = _split(keys.values, chunk, 0.0)
    q = _split(q, chunk, 0.0).unflatten(1, (kv_heads, -1)).transpose(2, 3).flatten(3, 4)
    peaks = None
    if keys.exponents:
        own = k.detach().amax(dim=(-2, -1), keepdim=True)
        peaks = torch.maximum(own.cummax(dim=2).values, state.peak[:, :, None])
        k = torch.exp(k - peaks)
    before, state = _run(state, k.mT @ v, peaks)
    scores = (q @ k.mT).unflatten(3, (-1, chunk)).tril().flatten(3, 4)
    mixed = scores @ v + q @ before
    mixed = mixed.unflatten(3, (-1, chunk)).transpose(2, 3).flatten(1, 2).flatten(2, 3)
    return mixed[:, :, :length], state


def _split(x: Tensor, chunk: int, fill: float) -> Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[2] % chunk), value=fill).unflatten(2, (-1, chunk))


def _run(state: RunningSums, added: Tensor, peaks: Tensor | None) -> tuple[Tensor, RunningSums]:
    """The sums before each chunk, and the state after the last.

    Args:
        state: Before the first chunk.
        added: (batch, kv_heads, chunks, features, value_dim + 1), what each chunk adds.
        peaks: (batch, kv_heads, chunks, 1, 1), under which each chunk's features were taken.
    """
    if peaks is None:
        sums = torch.cat((state.sums[:, :, None], added), dim=2).cumsum(dim=2)
        return sums[:, :, :-1], RunningSums(sums[:, :, -1], state.peak)
    sums, peak, before = state.sums, state.peak, []
    for new, above in zip(added.unbind(2), peaks.unbind(2), strict=True):
        sums = sums * torch.exp(peak - above)
        before.append(sums)
        sums, peak = sums + new, above
    return torch.stack(before, dim=2), RunningSums(sums, peak)
