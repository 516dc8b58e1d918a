"""What a call's weights are like, exactly, without ever holding them all."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import DeviceError, OptionError, ShapeError
from manyheads.functional.call import Call, prepare
from manyheads.functional.choose import choose
from manyheads.functional.masses import (
    Carried,
    KeyMass,
    PairMass,
    Pairs,
    by_distance,
    key_sets,
    on_few_keys,
    on_one_behind,
)
from manyheads.functional.passes import Answer, Question, meet
from manyheads.functional.pieces import SCORES
from manyheads.functional.pooled import How, Pooled
from manyheads.functional.reference import softmax_scores
from manyheads.functional.rows import Rows, rows_of
from manyheads.functional.strongest import Peak, Peaks, Top, TopKeys
from manyheads.functional.window import Tokens, indices, window
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias
from manyheads.shapes import Positions, check_count, check_tensor, whole

PerRow = Float[Tensor, "batch num_heads q_len"]


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

    def peak(self) -> Peak:
        """The greatest weight of each row, and the key that has it."""
        return self._ask(Peaks(self.total()))

    def top(self, count: int) -> Top:
        """The ``count`` greatest weights of each row, and their keys."""
        check_count("count", count)
        return self._ask(TopKeys(self.total(), count))

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
        columns = key_sets(self.call, keys)
        met = columns.ne(0).any(dim=2).any(dim=0)
        few = met.nonzero()[:, 0]
        if 8 * len(few) <= len(met):
            mass = on_few_keys(self.call, self.total(), columns, few)
        else:
            mass = self._ask(KeyMass(self.total(), columns))
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
        found = on_one_behind(self.call, self.total(), count)
        if found is not None:
            return found
        return self._ask(by_distance(self.call, self.total(), lambda distance: distance == count))

    @torch.no_grad()
    def mass_of(self, pairs: Pairs) -> PerRow:
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
        return self._ask(PairMass(self.total(), pairs))

    def distance(self) -> PerRow:
        """How far away each query looks: abs(q_pos - kv_pos) in tokens, averaged by the weights."""
        return self._ask(by_distance(self.call, self.total(), torch.abs))

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
        batch, _, q_len, _ = self.call.q.shape
        shape = check_tensor("amounts", amounts).shape
        if len(shape) != 3 or (shape[0], shape[2]) != (batch, q_len):
            raise ShapeError(
                f"amounts must be (batch, rows, q_len), with batch={batch} and q_len={q_len}; got "
                f"shape {tuple(shape)}. Give one number for each query."
            )
        return self._ask(Carried(self.total(), amounts, self.call.k.shape[2]))

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
        q_len, kv_len = self.call.q.shape[2], self.call.k.shape[2]
        height, width = min(height, q_len), min(width, kv_len)
        return self._ask(Pooled(self.total(), kv_len, height, width, how))

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
        queries = indices("rows", rows, q_len, self.call.q.device)
        wanted = indices("keys", keys, self.call.k.shape[2], self.call.q.device)
        every, kv = slice(0, batch), slice(0, self.call.k.shape[2])
        found = [
            softmax_scores(window(self.call, every, some, kv))[0][..., wanted]
            for some in queries.split(max(1, SCORES // max(1, batch * heads * kv.stop)))
        ]
        return torch.cat(found, dim=2)

    def meet(self, *questions: Question[Any]) -> None:
        """Let several questions meet the scores in one pass, for little more than one of them.

        Args:
            questions: Such as `Peaks`, `PairMass` or `Pooled`; each then has its answer.
        """
        meet(self.call, self.total(), questions)

    def total(self) -> PerRow:
        """What each row of scores is normalised by, in logarithms; 0 if it sees nobody.

        It has no gradient, and counts a sink, both unlike `lse`.
        """
        total = self._rows().total
        return total.masked_fill(total == -torch.inf, 0.0)

    def _rows(self) -> Rows:
        if self._kept is None:
            self._kept = rows_of(self.call)
        return self._kept

    def _ask(self, question: Question[Answer]) -> Answer:
        self.meet(question)
        return question.answer()


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
