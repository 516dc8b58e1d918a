"""Linear attention: features of queries and keys in the place of the softmax."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError, is_named
from manyheads.functional.attention import K, Output, Q, V
from manyheads.functional.precision import full_precision
from manyheads.functional.running_sums import RunningSums, attend_by_features
from manyheads.functional.simple import Simple, simplify_call
from manyheads.masks import Mask
from manyheads.shapes import check_count

Features = Float[Tensor, "batch heads length features"]


def elu_features(x: Tensor) -> Features:
    """elu(x) + 1: always above 0 (Katharopoulos et al. 2020, eq. 7)."""
    # exp(x) itself, because elu(x) + 1 rounds to 0 from x = -17 on.
    return torch.exp(x.clamp(max=0)) + torch.relu(x)


def taylor_features(x: Tensor) -> Features:
    """Features whose products are 1 + s + s²/2 of s = q.k / sqrt(head_dim) (Arora et al. 2024)."""
    x = x * x.shape[-1] ** -0.25
    squares = (x[..., :, None] * x[..., None, :]).flatten(-2) * 2**-0.5
    return torch.cat((torch.ones_like(x[..., :1]), x, squares), dim=-1)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": elu_features,
    "relu": torch.relu,
    "softplus": F.softplus,
    "taylor": taylor_features,
}
"""Feature maps by name. Those of one's own must not make the sum of products negative."""

Feature = Literal["elu", "relu", "softplus", "taylor"] | Callable[[Tensor], Tensor]


def linear_attention(
    q: Q,
    k: K,
    v: V,
    mask: Mask | None = None,
    *,
    feature: Feature = "elu",
    state: RunningSums | None = None,
    chunk: int = 128,
) -> Output:
    """Mix values by products of features, in time and memory linear in the length.

    out_i = sum_j (f(q_i) . f(k_j)) v_j / sum_j (f(q_i) . f(k_j)) over the keys j that query i may
    see. This is a mechanism of its own, to be trained with: only "taylor" comes near softmax, and
    only where scores are small.

    Args:
        q: Queries.
        k: Keys; each serves ``num_heads / num_kv_heads`` query heads, neighbours first.
        v: Values.
        mask: None, ``Causal()``, ``Padding(...)`` or both joined by ``&``. Without ``Causal()``
            any q_len goes with any kv_len.
        feature: A name in `FEATURES`, or a function from (batch, heads, length, head_dim) to
            (batch, heads, length, features), none of them below 0.
        state: What `linear_attention_with_state` returned for earlier keys, which all queries see.
        chunk: How many keys of a causal call are met pair by pair before they join the sums; a
            matter of speed alone.

    Returns:
        The mixed values in q's dtype, summed in fp32 at least. A query that sees nobody gets 0,
        with gradient 0.

    Raises:
        MaskError: If the mask is any other.
        ShapeError: If a shape does not fit (and DTypeError, DeviceError likewise).
        OptionError: If there is no such feature map, or chunk is not a number of keys.

    Source:
        Katharopoulos et al. 2020, eq. 4 to 7 and 9 to 12 (arXiv:2006.16236).

    Example:
        >>> import torch, manyheads as mh
        >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 4)
        >>> mh.linear_attention(q, k, v, mh.Causal()).shape
        torch.Size([2, 8, 5, 4])
    """
    return linear_attention_with_state(q, k, v, mask, feature=feature, state=state, chunk=chunk)[0]


def linear_attention_with_state(
    q: Q,
    k: K,
    v: V,
    mask: Mask | None = None,
    *,
    feature: Feature = "elu",
    state: RunningSums | None = None,
    chunk: int = 128,
) -> tuple[Output, RunningSums]:
    """Do `linear_attention` and return what must be kept of the keys, of a size that never grows.

    Arguments and errors are those of `linear_attention`; the mask speaks of the new tokens only.

    Returns:
        The output, and the state for the next call.

    Example:
        >>> import torch, manyheads as mh
        >>> from manyheads.functional import linear_attention_with_state
        >>> q = k = v = torch.randn(1, 2, 9, 4)
        >>> steps, state = [], None
        >>> for token in q.split(1, dim=2):
        ...     step, state = linear_attention_with_state(
        ...         token, token, token, mh.Causal(), state=state
        ...     )
        ...     steps.append(step)
        >>> whole = mh.linear_attention(q, k, v, mh.Causal())
        >>> torch.allclose(torch.cat(steps, dim=2), whole, atol=1e-4)
        True
        >>> state.sums.shape
        torch.Size([1, 2, 4, 5])
    """
    make = _features(feature)
    chunk = check_count("chunk", chunk)
    call = simplify_call("linear_attention", q, k, v, mask)
    with full_precision(q.device):
        features = _of_keys(make, call)
        output, state = attend_by_features(
            make(call.q), features, call.v, state, causal=call.causal, chunk=chunk
        )
    return output.to(call.dtype), state


def _of_keys(make: Callable[[Tensor], Tensor], call: Simple) -> Tensor:
    # After the feature map, which need not send 0 to 0: the normaliser too must not count them.
    features, absent = make(call.k), call.absent_rows
    return features if absent is None else features.masked_fill(absent, 0.0)


def _features(feature: Feature) -> Callable[[Tensor], Tensor]:
    if callable(feature):
        return feature
    if not is_named(feature, FEATURES):
        raise OptionError(
            f"feature must be one of {', '.join(FEATURES)}, or a function; got "
            f"feature={feature!r}. A function takes and returns (batch, heads, length, any)."
        )
    return FEATURES[feature]
