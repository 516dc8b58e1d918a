"""T5's, BLOOM's and XLNet's attention in Hugging Face, given the same weights."""

import pytest
import torch
from tests.interop_huggingface.theirs import CALLS, Theirs, assert_alike, copy_into, renamed
from torch import Tensor
from transformers import BloomConfig, DynamicCache, T5Config, XLNetConfig
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

import manyheads as mh


def heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


@pytest.mark.parametrize(("q_len", "past"), [(23, 0), (300, 0), (1, 40), (7, 150)])
@pytest.mark.parametrize("decoder", [False, True])
def test_t5s_attention_is_ours_with_its_buckets_and_without_a_scale(
    decoder: bool, q_len: int, past: int
) -> None:
    config = T5Config(d_model=32, d_kv=8, num_heads=4, dropout_rate=0.0, is_decoder=decoder)
    config._attn_implementation = "eager"
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    bias = mh.T5Bias(4, reach="past" if decoder else "both")
    with torch.no_grad():
        bias.table.copy_(theirs.relative_attention_bias.weight)
    x = torch.randn(2, past + q_len, 32)
    q, k, v = (heads(project(x), 4) for project in (theirs.q, theirs.k, theirs.v))
    hidden = torch.zeros(q_len + past, q_len + past).masked_fill(
        torch.ones(q_len + past, q_len + past).triu(1).bool(), -torch.inf
    )
    expected, _, weights = theirs(x, mask=hidden[None, None] if decoder else None)
    mask = mh.Causal() if decoder else None
    out, ours = mh.attention_with_weights(q[:, :, past:], k, v, mask, bias=bias, scale=1.0)
    out = theirs.o(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected[:, past:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours, weights[:, :, past:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_heads", [4, 6])
def test_blooms_alibi_is_ours_up_to_a_number_a_row(num_heads: int) -> None:
    config = BloomConfig(hidden_size=8 * num_heads, n_head=num_heads)
    assert config.n_head == num_heads
    keep = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    alibi = build_alibi_tensor(keep, num_heads, torch.float32).view(2, num_heads, 1, 7)
    q, k, v = (torch.randn(2, num_heads, 7, 8) for _ in range(3))
    scores = q @ k.mT / 8**0.5 + alibi
    seen = torch.ones(7, 7).tril().bool() & keep.bool()[:, None, None, :]
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
    positions = keep.cumsum(-1) - 1  # below 0 where there is no token
    for backend in ("reference", "fused"):
        out = mh.attention(
            *(q, k, v, mh.Causal()),
            bias=mh.ALiBi(num_heads),
            q_pos=positions,
            kv_pos=positions,
            backend=backend,
        )
        torch.testing.assert_close(out, weights @ v, atol=1e-5, rtol=1e-5)


class TheirBloom(Theirs):
    """BLOOM's layer, whose bias stands for the positions."""

    def __call__(
        self, x: Tensor, keep: Tensor, cache: DynamicCache | None = None
    ) -> tuple[Tensor, Tensor]:
        alibi = build_alibi_tensor(keep.long(), self.config.n_head, x.dtype)
        mask, nothing = self.mask(x, keep, cache), torch.zeros_like(x)
        return self.attention(x, nothing, alibi=alibi, attention_mask=mask, layer_past=cache)


class TheirT5(Theirs):
    """T5's layer, which makes its own bias."""

    def __call__(
        self, x: Tensor, keep: Tensor, cache: DynamicCache | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.attention(x, mask=self.mask(x, keep, cache), cache=cache)[::2]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("num_heads", [4, 6])
def test_blooms_layer_is_ours_with_alibi(num_heads: int, call: str) -> None:
    """Theirs adds slope * position, ours slope * distance: softmax sees no difference.

    Their packed projection goes head by head, q, k and v of each; ours has all q first. A row of
    padding sees the mean of all values in theirs and nobody in ours, so real tokens are compared.
    """
    config = BloomConfig(hidden_size=8 * num_heads, n_head=num_heads, hidden_dropout=0.0, n_layer=1)
    config._attn_implementation = "eager"
    theirs = TheirBloom(BloomAttention(config, layer_idx=0), config)
    ours = mh.MultiHeadAttention(8 * num_heads, num_heads, projections="packed")
    state = renamed(theirs.attention, {"query_key_value": "qkv_proj", "dense": "out_proj"})
    for kind in ("weight", "bias"):
        by_head = state[f"qkv_proj.{kind}"].unflatten(0, (num_heads, 3, 8))
        state[f"qkv_proj.{kind}"] = by_head.transpose(0, 1).flatten(0, 2)
    copy_into(ours, state)
    assert_alike(ours, theirs, mh.Causal(), bias=mh.ALiBi(num_heads), **CALLS[call])


@pytest.mark.parametrize("call", CALLS)
def test_t5s_decoder_layer_is_ours_with_a_scale_of_one(call: str) -> None:
    """Theirs counts distances by place and ours by position: the same for any two real tokens."""
    config = T5Config(
        **{"d_model": 32, "d_kv": 8, "num_heads": 4, "dropout_rate": 0.0, "is_decoder": True},
        num_layers=1,
        relative_attention_num_buckets=12,
        relative_attention_max_distance=15,
    )
    config._attn_implementation = "eager"
    theirs = TheirT5(T5Attention(config, has_relative_attention_bias=True, layer_idx=0), config)
    ours = mh.MultiHeadAttention(32, 4, bias=False, scores=mh.Scores(scale=1.0))
    bias = mh.T5Bias(4, reach="past", num_buckets=12, max_distance=15)
    names = {"relative_attention_bias": "bias", "o": "out_proj"}
    state = renamed(theirs.attention, names | {name: f"{name}_proj" for name in "qkv"})
    with torch.no_grad():
        bias.table.copy_(state.pop("bias.weight"))
    copy_into(ours, state)
    assert_alike(ours, theirs, mh.Causal(), bias=bias, **CALLS[call])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("q_len", "memory"), [(7, 0), (7, 5), (1, 6), (12, 3)])
def test_xlnets_relative_attention_is_ours(q_len: int, memory: int, masked: bool) -> None:
    """Its positions start at q_len and not at 0, which no relative distance can see. Its mask says
    1 = hidden and lies (q_len, kv_len, batch, 1); a memory is further keys before the queries.
    """
    config = XLNetConfig(d_model=24, n_head=3, n_layer=1, d_inner=8, dropout=0.0, vocab_size=5)
    model, theirs = XLNetModel(config).eval(), XLNetRelativeAttention(config).eval()
    bias = mh.TransformerXLBias(3, 8, 24)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
        bias.u.copy_(theirs.r_w_bias)
        bias.v.copy_(theirs.r_r_bias)
        bias.r_proj.weight.copy_(theirs.r.flatten(1).T)
    length = memory + q_len
    x = torch.randn(2, length, 24)
    q, k, v = (
        torch.einsum("blh,hnd->bnld", y, w)
        for y, w in ((x[:, memory:], theirs.q), (x, theirs.k), (x, theirs.v))
    )
    encoding = model.relative_positional_encoding(q_len, length, bsz=2)
    encoded = torch.einsum("ibh,hnd->ibnd", encoding, theirs.r)
    mask, hidden = None, None
    if masked:
        # The first key is there, so that each query of the causal text sees somebody.
        keep = torch.arange(length) < torch.tensor([[length], [max(length - 3, 1)]])
        mask = mh.Causal() & mh.Padding(keep)
        seen = mask.dense(q_len, length, batch=2)
        hidden = (~seen).float().permute(2, 3, 0, 1)
    expected = theirs.rel_attn_core(
        *(t.permute(2, 0, 1, 3) for t in (q, k, v)), encoded, attn_mask=hidden
    )
    expected = expected.permute(1, 2, 0, 3)
    out = mh.attention(q, k, v, mask, bias=bias)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    places = torch.arange(length)[None].expand(2, -1)
    again = mh.attention(q, k, v, mask, bias=bias, q_pos=places[:, memory:], kv_pos=places)
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-5)
