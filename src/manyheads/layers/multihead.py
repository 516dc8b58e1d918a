"""Multi-head attention: weights around one call of `attention`."""

from contextlib import nullcontext
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.cache import Cache, CrossCache
from manyheads.errors import PositionError
from manyheads.layers.checks import check_cache, check_same_tokens, check_stream
from manyheads.layers.gate import Gate, gated, make_gate
from manyheads.layers.heads import Heads
from manyheads.layers.initialise import Init, initialise
from manyheads.layers.projections import ProjectionBias, Projections, check_bias
from manyheads.layers.scores import Scores, attend, begin_scores, checked_scores
from manyheads.masks import Bound, Mask
from manyheads.positions import Bias, Rotary
from manyheads.shapes import Positions, check_probability


class MultiHeadAttention(Heads):
    """Attention of a stream to itself or to a context, by several heads side by side.

    Each head h has its own q_h = x W_q, k_h = c W_k, v_h = c W_v, where c is the context or x
    itself, and gives softmax(q_h k_h^T / sqrt(head_dim)) v_h; the heads' outputs stand side by
    side and pass through W_o.

    How ours differs from ``torch.nn.MultiheadAttention``: True in a mask means *may see*; the
    batch comes first; the output alone is returned, and `with_weights` returns each head's
    weights; a query that sees nobody gives W_o's bias, never NaN; padding may hold anything.

    Args:
        d_model: Width of x and of the output.
        num_heads: Query heads.
        num_kv_heads: Key and value heads: 1 is MQA, fewer than `num_heads` GQA; None = all.
        head_dim: Width of a head; None = ``d_model / num_heads``.
        d_context: Width of the context; None = `d_model`.
        d_value: Width of a value stream of its own; None = `d_context`.
        bias: Whether the projections add a bias; with "qkv" all but the output's do, as in Qwen2.
        dropout: Share of the weights to drop in training.
        output_dropout: Share of the output to drop in training.
        rotary: Turns queries and keys by their positions.
        qk_norm: Normalise each head's queries and keys, before rotary.
        scores: How scores differ from q.k / sqrt(head_dim): their scale, a softcap, learned sinks.
        gate: Multiply what heads took by sigmoid(x W_g) before W_o: a gate for each "head", or for
            each "channel" of it; None for no gate.
        projections: "separate" or "packed" into one matrix `qkv_proj`; each loads the other's
            state dict, and that of ``torch.nn.MultiheadAttention``.
        init: How the weights begin; see `initialise`.
        device: Where the weights go.
        dtype: Of what type they are.

    Raises:
        OptionError: If widths and heads do not fit; the message says which do.

    Source:
        Vaswani et al. 2017, section 3.2.2 (arXiv:1706.03762); MQA, Shazeer 2019
        (arXiv:1911.02150); GQA, Ainslie et al. 2023 (arXiv:2305.13245); QK norm, Henry et al. 2020
        (arXiv:2010.04245); gates, Qiu et al. 2025 (arXiv:2505.06708).

    Example:
        >>> import torch, manyheads as mh
        >>> layer = mh.MultiHeadAttention(512, 8, num_kv_heads=2)
        >>> layer(torch.randn(2, 10, 512), mask=mh.Causal()).shape
        torch.Size([2, 10, 512])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        d_context: int | None = None,
        d_value: int | None = None,
        bias: ProjectionBias = True,
        dropout: float = 0.0,
        output_dropout: float = 0.0,
        rotary: Rotary | None = None,
        qk_norm: Literal["rms", "layer"] | None = None,
        scores: Scores | None = None,
        gate: Gate | None = None,
        projections: Projections = "separate",
        init: Init = "xavier",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_bias(bias)
        super().__init__(
            d_model,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            d_context=d_context,
            d_value=d_value,
            bias=bool(bias),
            rotary=rotary,
            qk_norm=qk_norm,
            projections=projections,
            device=device,
            dtype=dtype,
        )
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.dropout = check_probability("dropout", dropout)
        self.init: Init = init
        self.scores = checked_scores(scores)
        self.sink_logits, self.head_scale = self.scores.parameters(num_heads, **place)
        self.gate_proj = make_gate(
            gate, d_model, num_heads, self.head_dim, bias=bool(bias), **place
        )
        self.out_proj = nn.Linear(self.widths[0], d_model, bias=bias is True, **place)
        self._scale = self.scores.scale_for(self.head_dim, rotary)
        self.output_dropout = nn.Dropout(check_probability("output_dropout", output_dropout))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin the weights anew."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                initialise(module, self.init)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()  # type: ignore[operator]
        begin_scores(self.sink_logits, self.head_scale)

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch kv_len d_context"] | None = None,
        value: Float[Tensor, "batch kv_len d_value"] | None = None,
        *,
        mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        context_positions: Positions = None,
        cache: Cache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
        weights_into: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Let each token of x take what it needs from x, or from a context.

        Args:
            x: The stream; its tokens ask.
            context: What is attended to; None means x itself.
            value: What is taken, if it is not what is attended to.
            mask: Who may see whom; with a cache it describes the new tokens only.
            positions: Where the tokens of x stand: an int, or a tensor (length,) or (batch,
                length); below 0 = no token. None: 0, 1, 2, ..., or after the cache's; with a
                context, the last of it.
            context_positions: Where the tokens of the context stand.
            cache: Holds keys and values of earlier calls, and is given this call's.
            bias: Added to the scores, as in `attention`: a tensor, or an object that reads
                positions, such as `ALiBi(num_heads)`.
            coordinates: Where the tokens of x stand along the axes of the rotary; see `Rotary`.
            weights_into: Receives this call's weights, before dropout.

        Raises:
            ShapeError: If a stream has another shape than the layer was built for (and DTypeError,
                DeviceError likewise).
            PositionError: If positions do not fit the tokens, or are needed and missing.
            MaskError: If the mask does not fit the tokens.
            CacheError: If the cache does not fit the call; it is then as it was.
        """
        self.check(x, context, value, cache)
        crosses = context is not None or isinstance(cache, CrossCache)
        with nullcontext() if cache is None else cache.serving(self):
            if crosses:
                if coordinates is not None:
                    raise PositionError(
                        "coordinates must go to a layer that attends to itself; got coordinates "
                        "and a context. Give positions and context_positions."
                    )
                x, q, k, v, bound = self._cross(
                    x, context, value, mask, positions, context_positions, cache, bias
                )
            else:
                x, q, k, v, bound = self._self(x, mask, positions, cache, coordinates)
            mixed = self._mix(q, k, v, bound, bias, weights_into)
            del q, k, v  # Their memory serves the output, where no gradient needs them.
            mixed = mixed.transpose(1, 2)
            if self.gate_proj is not None:
                mixed = gated(mixed, self.gate_proj(x))
            return self.output_dropout(self.out_proj(mixed.flatten(2)))

    def _mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bound: Bound | None,
        bias: Tensor | Bias | None,
        weights_into: list[Tensor] | None,
    ) -> Tensor:
        """The one call of `attention`: (batch, heads, q_len, width)."""
        if self.head_scale is not None:
            q = q * self.head_scale.to(q.dtype)[:, None, None]
        return attend(
            q,
            k,
            v,
            bound,
            bias=bias,
            scale=self._scale,
            softcap=self.scores.softcap,
            sink_logits=self.sink_logits,
            dropout=self.dropout if self.training else 0.0,
            weights_into=weights_into,
        )

    def with_weights(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        context: Float[Tensor, "batch kv_len d_context"] | None = None,
        value: Float[Tensor, "batch kv_len d_value"] | None = None,
        *,
        mask: Mask | Bound | Tensor | None = None,
        positions: Positions = None,
        context_positions: Positions = None,
        cache: Cache | None = None,
        bias: Tensor | Bias | None = None,
        coordinates: Tensor | None = None,
    ) -> tuple[Float[Tensor, "batch q_len d_model"], Float[Tensor, "batch num_heads q_len kv_len"]]:
        """Do what a call of the layer does, hooks included, and return each head's weights too.

        Example:
            >>> import torch, manyheads as mh
            >>> out, weights = mh.MultiHeadAttention(16, 4).with_weights(torch.randn(1, 3, 16))
            >>> weights.shape, torch.allclose(weights.sum(-1), torch.ones(1, 4, 3))
            (torch.Size([1, 4, 3, 3]), True)
        """
        weights: list[Tensor] = []
        out = self(
            x,
            context,
            value,
            mask=mask,
            positions=positions,
            context_positions=context_positions,
            cache=cache,
            bias=bias,
            coordinates=coordinates,
            weights_into=weights,
        )
        return out, weights[0]

    def check(
        self,
        x: Tensor,
        context: Tensor | None = None,
        value: Tensor | None = None,
        cache: Cache | None = None,
    ) -> None:
        """Refuse what a call would refuse of its streams and its cache; whoever calls may too."""
        # Past attribute access, which would compute a parametrised weight.
        weight = self.out_proj._parameters.get("weight")
        check_stream("x", x, self.d_model, weight)
        if context is not None:
            check_stream("context", context, self.d_context, weight)
        if value is not None:
            check_stream("value", value, self.d_value, weight)
        check_same_tokens(x, context, value)
        check_cache(cache)
