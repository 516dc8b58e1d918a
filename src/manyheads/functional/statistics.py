"""What a call's weights are like, exactly, without ever holding them all."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import DeviceError, OptionError, ShapeError
from manyheads.functional.call import Call, prepare
from manyheads.functional.choose import choose
from manyheads.functional.paired import paired_scores
from manyheads.functional.pieces import SCORES, mask_of, pieces
from manyheads.functional.pooled import How, pool
from manyheads.functional.reference import masked_scores, softmax_scores
from manyheads.functional.rows import Rows, rows_of
from manyheads.functional.window import window
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias
from manyheads.shapes import Positions, check_count, check_tensor, whole

PerRow = Float[Tensor, "batch num_heads q_len"]
Tokens = slice | int | Sequence[int] | Tensor | None
"""Some tokens of one side: a slice, an index, several, bools; None for all."""


class Peak(NamedTuple):
    """The greatest weight of each row.

    Args:
        weight: (batch, num_heads, q_len).
        key: (batch, num_heads, q_len), the first key that has it; -1 if the row sees nobody.
    """

    weight: Tensor
    key: Tensor


class Top(NamedTuple):
    """The greatest weights of each row, greatest first.

    Args:
        weights: (batch, num_heads, q_len, count).
        keys: (batch, num_heads, q_len, count); -1, with weight 0, where a row sees fewer.
    """

    weights: Tensor
    keys: Tensor


class Statistics:
    """What the weights of one call of attention are like, at any length.

    Each answer equals what one would compute from the weights, written out; none needs memory of
    q_len x kv_len. Scores are made a piece at a time, where somebody sees somebody, in fp32 at
    least; each method that is not told otherwise takes one pass over them. Answers have no
    gradient, but for `lse`.

    Args:
        call: A call as `prepare` settles it.
    """

    def __init__(self, call: Call) -> None:
        if call.q.device.type == "meta":
            raise DeviceError(
                "q must hold numbers to have statistics; got q on the meta device. Load the "
                "weights, or call .to_empty() and fill them."
            )
        self.call = call
        self._kept: Rows | None = None

    def lse(self) -> PerRow:
        """Log-sum-exp of each row of scores, sink logits left out; -inf if the row sees nobody.

        It has a gradient where q, k or the bias want one.
        """
        if self.call.needs_grad:
            call = self.call._replace(need="lse")
            lse = choose(call, "auto").run(call).lse
            assert lse is not None
            return lse
        return self._rows().lse

    def entropy(self) -> PerRow:
        """Entropy of each row in nats: 0 on one key, log n spread evenly over n.

        A sink counts as one more key. A row that sees nobody has 0.

        Example:
            >>> import torch, manyheads as mh
            >>> q = k = v = torch.zeros(1, 1, 3, 4)
            >>> mh.statistics(q, k, v, mh.Causal()).entropy().exp().round()
            tensor([[[1., 2., 3.]]])
        """
        return self._rows().entropy

    @torch.no_grad()
    def peak(self) -> Peak:
        """The greatest weight of each row, and the key that has it."""
        total = self._total()
        best = torch.full_like(total, -torch.inf)
        place = torch.full(total.shape, -1, dtype=torch.int64, device=total.device)
        for piece in pieces(self.call):
            score, key = piece.scores.max(dim=-1)
            better = score > best[piece.at]
            best[piece.at] = torch.where(better, score, best[piece.at])
            place[piece.at] = torch.where(better, key + piece.keys.start, place[piece.at])
        return Peak((best - total).exp(), place)

    @torch.no_grad()
    def top(self, count: int) -> Top:
        """The ``count`` greatest weights of each row, and their keys."""
        check_count("count", count)
        total = self._total()
        shape = (*total.shape, count)
        best = total.new_full(shape, -torch.inf)
        places = torch.full(shape, -1, dtype=torch.int64, device=total.device)
        for piece in pieces(self.call):
            few = min(count, piece.scores.shape[-1])
            scores, keys = piece.scores.topk(few, dim=-1)
            both = torch.cat((best[piece.at], scores), dim=-1)
            every = torch.cat((places[piece.at], keys + piece.keys.start), dim=-1)
            best[piece.at], chosen = both.topk(count, dim=-1)
            places[piece.at] = every.gather(-1, chosen)
        places = places.masked_fill(best == -torch.inf, -1)
        return Top((best - total[..., None]).exp(), places)

    @torch.no_grad()
    def mass(self, keys: Tensor) -> Float[Tensor, "batch num_heads q_len *sets"]:
        """How much of its weight each query gives to a set of keys: sinks, commas, a document.

        No pass over all scores is needed for few keys.

        Args:
            keys: (kv_len,), (batch, kv_len) or (batch or 1, kv_len, sets): bools, or numbers that
                the weights are multiplied with.

        Example:
            >>> import torch, manyheads as mh
            >>> q = k = v = torch.zeros(1, 1, 4, 8)
            >>> mh.statistics(q, k, v).mass(torch.tensor([True, True, False, False]))
            tensor([[[0.5000, 0.5000, 0.5000, 0.5000]]])
        """
        columns = self._columns(keys)
        total = self._total()
        mass = total.new_zeros(*total.shape, columns.shape[2])
        met = columns.ne(0).any(dim=2).any(dim=0)
        few = met.nonzero()[:, 0]
        if 8 * len(few) <= len(met):
            for rows in self._row_blocks(len(few)):
                scores = masked_scores(window(self.call, slice(0, len(total)), rows, few))
                weights = (scores - total[:, :, rows, None]).exp_()
                mass[:, :, rows] = weights @ columns[:, None, few]
        else:
            for piece in pieces(self.call):
                weights = (piece.scores - total[piece.at][..., None]).exp_()
                of = piece.sequence if columns.shape[0] > 1 else slice(None)
                mass[piece.at] += weights @ columns[of, None, piece.keys]
        return mass if keys.ndim == 3 else mass[..., 0]

    @torch.no_grad()
    def mass_behind(self, tokens: int) -> PerRow:
        """How much of its weight each query gives to the key ``tokens`` positions before its own.

        0 is the query's own token, 1 the previous one, below 0 those to come. No pass over all
        scores is needed where positions are runs.
        """
        if (count := whole(tokens)) is None:
            raise OptionError(
                f"tokens must be an int; got tokens={tokens!r}. It counts positions back from a "
                f"query: 0 is its own, below 0 those to come."
            )
        tokens = count
        bound = mask_of(self.call)
        q_first, kv_first = bound.q.position, bound.kv.position
        if isinstance(q_first, Tensor) or isinstance(kv_first, Tensor):
            return self._by_distance(lambda distance: distance == tokens)
        total = self._total()
        mass = torch.zeros_like(total)
        shift = q_first - kv_first - tokens
        first, last = max(0, -shift), min(bound.q.length, bound.kv.length - shift)
        if first < last:
            rows = slice(first, last)
            scores = paired_scores(self.call, rows, shift)
            mass[:, :, rows] = (scores - total[:, :, rows]).exp()
        return mass

    @torch.no_grad()
    def mass_of(self, pairs: Callable[[slice, slice, slice], Tensor]) -> PerRow:
        """How much of its weight each query gives to pairs of a kind: same token, same speaker.

        Args:
            pairs: Is handed some sequences, some queries and some keys, and says of each pair
                (sequences or 1, heads or 1, queries, keys) whether it is of the kind, or by what
                number its weight is multiplied.

        Example:
            >>> import torch, manyheads as mh
            >>> q = k = v = torch.zeros(1, 1, 4, 8)
            >>> ids = torch.tensor([3, 5, 3, 3])
            >>> mh.statistics(q, k, v).mass_of(
            ...     lambda sequence, rows, keys: (ids[rows, None] == ids[keys])[None, None]
            ... )
            tensor([[[0.7500, 0.2500, 0.7500, 0.7500]]])
        """
        total = self._total()
        mass = torch.zeros_like(total)
        for piece in pieces(self.call):
            weights = (piece.scores - total[piece.at][..., None]).exp_()
            of_pair = pairs(piece.sequence, piece.rows, piece.keys).to(weights.dtype)
            mass[piece.at] += weights.mul_(of_pair).sum(dim=-1)
        return mass

    def distance(self) -> PerRow:
        """How far away each query looks: abs(q_pos - kv_pos) in tokens, averaged by the weights."""
        return self._by_distance(torch.abs)

    @torch.no_grad()
    def received(self) -> Float[Tensor, "batch num_heads kv_len"]:
        """How much weight each key receives from all queries together."""
        batch, _, q_len, _ = self.call.q.shape
        return self.carried(self.call.q.new_ones(batch, 1, q_len))[:, :, 0]

    @torch.no_grad()
    def carried(
        self, amounts: Float[Tensor, "batch rows q_len"]
    ) -> Float[Tensor, "batch num_heads rows kv_len"]:
        """Where amounts that stand at the queries go, if each spreads its own by its weights.

        Args:
            amounts: Some rows of numbers, one for each query; ones give what is `received`.

        Example:
            >>> import torch, manyheads as mh
            >>> q = k = v = torch.zeros(1, 1, 2, 8)
            >>> mh.statistics(q, k, v, mh.Causal()).carried(torch.tensor([[[0.0, 1.0]]]))
            tensor([[[[0.5000, 0.5000]]]])
        """
        batch, heads, q_len, _ = self.call.q.shape
        shape = check_tensor("amounts", amounts).shape
        if len(shape) != 3 or (shape[0], shape[2]) != (batch, q_len):
            raise ShapeError(
                f"amounts must be (batch, rows, q_len), with batch={batch} and q_len={q_len}; got "
                f"shape {tuple(shape)}. Give one number for each query."
            )
        total = self._total()
        carried = total.new_zeros(batch, heads, amounts.shape[1], self.call.k.shape[2])
        amounts = amounts[:, None].to(total)
        for piece in pieces(self.call):
            weights = (piece.scores - total[piece.at][..., None]).exp_()
            moved = amounts[piece.sequence, :, :, piece.rows] @ weights
            carried[piece.sequence, piece.heads, :, piece.keys] += moved
        return carried

    @torch.no_grad()
    def pooled(
        self, height: int, width: int, how: How = "mean"
    ) -> Float[Tensor, "batch num_heads height width"]:
        """The weights as a picture: cells of neighbouring queries and keys.

        Args:
            height: Rows of the picture; no more are made than there are queries.
            width: Columns of the picture, likewise of keys.
            how: What a cell says: the "mean", "sum" or "max" of its weights, hidden ones 0.
        """
        check_count("height", height)
        check_count("width", width)
        if how not in ("mean", "sum", "max"):
            raise OptionError(
                f"how must be one of mean, sum, max; got how={how!r}. It says what a cell of many "
                f"weights shows."
            )
        height, width = min(height, self.call.q.shape[2]), min(width, self.call.k.shape[2])
        return pool(self.call, self._total(), height, width, how)

    @torch.no_grad()
    def weights(
        self, rows: Tokens = None, keys: Tokens = None
    ) -> Float[Tensor, "batch num_heads rows keys"]:
        """The weights of some queries on some keys, before dropout; all of them if not told.

        Only the rows asked for are computed, in fp32 at least.

        Args:
            rows: Which queries: an index, several, a slice or bools; None for all.
            keys: Which keys, likewise.
        """
        batch, heads, q_len, _ = self.call.q.shape
        queries = _indices("rows", rows, q_len, self.call.q.device)
        wanted = _indices("keys", keys, self.call.k.shape[2], self.call.q.device)
        every, kv = slice(0, batch), slice(0, self.call.k.shape[2])
        found = [
            softmax_scores(window(self.call, every, some, kv))[0][..., wanted]
            for some in queries.split(max(1, SCORES // max(1, batch * heads * kv.stop)))
        ]
        return torch.cat(found, dim=2)

    def _rows(self) -> Rows:
        if self._kept is None:
            self._kept = rows_of(self.call)
        return self._kept

    def _total(self) -> Tensor:
        """What each row of scores is normalised by, in logarithms; finite for every row."""
        total = self._rows().total
        return total.masked_fill(total == -torch.inf, 0.0)

    def _row_blocks(self, keys: int) -> list[slice]:
        batch, heads, q_len, _ = self.call.q.shape
        most = max(1, SCORES // max(1, batch * heads * keys))
        return [slice(first, min(first + most, q_len)) for first in range(0, q_len, most)]

    def _by_distance(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean of a function of (query's position - key's position), by the weights."""
        bound = mask_of(self.call)
        q, kv = bound.q.side(-2).position, bound.kv.side(-1).position

        def of_pair(sequence: slice, rows: slice, keys: slice) -> Tensor:
            return function(_of(q, sequence)[:, :, rows] - _of(kv, sequence)[..., keys])

        return self.mass_of(of_pair)

    def _columns(self, keys: Tensor) -> Tensor:
        """Sets of keys as numbers (batch or 1, kv_len, sets)."""
        batch, kv_len = self.call.q.shape[0], self.call.k.shape[2]
        keys = check_tensor("keys", keys)
        columns = keys[..., None] if keys.ndim < 3 else keys
        columns = columns[None] if columns.ndim == 2 else columns
        if columns.ndim != 3 or columns.shape[0] not in (1, batch) or columns.shape[1] != kv_len:
            raise ShapeError(
                f"keys must be (kv_len,), (batch, kv_len) or (batch, kv_len, sets), with "
                f"batch={batch} and kv_len={kv_len}; got shape {tuple(keys.shape)}. Say of each "
                f"key whether it is in the set."
            )
        return columns.to(self.call.q.device, torch.promote_types(self.call.q.dtype, torch.float32))


def _of(position: Tensor, sequence: slice) -> Tensor:
    return position if position.shape[0] == 1 else position[sequence]


def _indices(name: str, chosen: Tokens, length: int, device: torch.device) -> Tensor:
    every = torch.arange(length, device=device)
    if chosen is None or isinstance(chosen, slice):
        return every if chosen is None else every[chosen]
    try:
        index = torch.atleast_1d(torch.as_tensor(chosen, device=device))
        if index.ndim == 1:
            return every[index if index.numel() else index.long()]
    except (IndexError, TypeError, ValueError, RuntimeError):
        pass
    raise OptionError(
        f"{name} must lie in the {length} tokens of the call; got {name}={chosen}. Give a slice, "
        f"indices from 0 on, or a bool for each."
    )


def statistics(
    q: Float[Tensor, "batch num_heads q_len head_dim"],
    k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads kv_len value_dim"],
    mask: Mask | Bound | Tensor | None = None,
    *,
    bias: Tensor | Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: Float[Tensor, " num_heads"] | None = None,
    q_pos: Positions = None,
    kv_pos: Positions = None,
) -> Statistics:
    """Ask what the weights of a call of `attention` are like, at any length.

    Arguments and errors are those of `attention`.

    Returns:
        `Statistics`, which has entropy, masses, distance, the strongest keys, pictures and any
        window of the weights. Nothing is computed before it is asked for.

    Example:
        >>> import torch, manyheads as mh
        >>> q, k, v = torch.randn(3, 1, 4, 1000, 16)
        >>> heads = mh.statistics(q, k, v, mh.Causal())
        >>> heads.entropy().shape, heads.top(3).keys.shape, heads.pooled(20, 20).shape
        (torch.Size([1, 4, 1000]), torch.Size([1, 4, 1000, 3]), torch.Size([1, 4, 20, 20]))
        >>> heads.weights(rows=slice(990, 1000), keys=[0, 1]).shape
        torch.Size([1, 4, 10, 2])
    """
    call = prepare(
        q, k, v, mask, bias=bias, scale=scale, softcap=softcap, sink_logits=sink_logits,
        dropout=0.0, q_pos=q_pos, kv_pos=kv_pos, need="weights",
    )  # fmt: skip
    return Statistics(call)
