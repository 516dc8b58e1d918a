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


def _lift(state: RunningSums, keys: Keys) -> tuple[Tensor, RunningSums]:
    """The features of the keys, and the state, both under the peak of all of them."""
    features = keys.features
    if not keys.exponents or features.shape[2] == 0:
        return features, state
    # One peak for all keys of a head: another for each of them would weigh them anew.
    peak = torch.maximum(state.peak, features.detach().amax(dim=(-2, -1), keepdim=True))
    sums = state.sums * torch.exp(state.peak - peak)
    return torch.exp(features - peak), RunningSums(sums, peak)


def _add(state: RunningSums, keys: Keys) -> RunningSums:
    features, state = _lift(state, keys)
    return RunningSums(state.sums + features.mT @ keys.values, state.peak)


def _read(q: Tensor, state: RunningSums) -> Tensor:
    return (_rows(q, state) @ state.sums).view(*q.shape[:3], state.sums.shape[3])


def _rows(q: Tensor, state: RunningSums) -> Tensor:
    # Heads that share keys stand side by side, so their rows stack without copying a sum.
    batch, heads, length, features = q.shape
    kv_heads = state.sums.shape[1]
    return q.reshape(batch, kv_heads, heads // kv_heads * length, features)


def _mix_causally(
    q: Tensor, keys: Keys, state: RunningSums, chunk: int
) -> tuple[Tensor, RunningSums]:
    q_len, kv_len = q.shape[2], keys.features.shape[2]
    # Queries that stand before every key see nobody; keys before the first query join the sums.
    blind, before = max(q_len - kv_len, 0), max(kv_len - q_len, 0)
    state, keys = _add(state, keys.part(0, before)), keys.part(before, kv_len)
    mixed = [q.new_zeros(*q.shape[:2], blind, keys.values.shape[3])]
    group = q.shape[1] // keys.features.shape[1]
    for q_chunk, k, v in zip(
        q[:, :, blind:].split(chunk, dim=2),
        keys.features.split(chunk, dim=2),
        keys.values.split(chunk, dim=2),
        strict=True,
    ):
        features, state = _lift(state, Keys(k, v, keys.exponents))
        rows = _rows(q_chunk, state)
        pairs = (rows @ features.mT).unflatten(2, (group, k.shape[2])).tril().flatten(2, 3)
        mixed.append((pairs @ v + rows @ state.sums).view(*q_chunk.shape[:3], v.shape[3]))
        state = RunningSums(state.sums + features.mT @ v, state.peak)
    return torch.cat(mixed, dim=2), state
