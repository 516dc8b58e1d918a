"""torch's own layers, whose eval mode has a fast path that nobody can see into."""

import pytest
import torch
from torch import nn

import manyheads as mh


def close(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=0, atol=1e-6)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_multihead_attention_is_seen_on_every_path(need_weights, grad, mask):
    layer = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(3, 9, 32)
    options = {}
    if mask == "causal":
        options["attn_mask"] = torch.ones(9, 9, dtype=torch.bool).triu(1)
    if mask == "padding":
        options["key_padding_mask"] = torch.arange(9) >= torch.tensor([[9], [4], [7]])
    _, right = layer(x, x, x, average_attn_weights=False, **options)
    with torch.set_grad_enabled(grad), mh.probe.watch(layer) as calls:
        layer(x, x, x, need_weights=need_weights, **options)
    assert len(calls) == 1
    close(calls[0].weights(), right)


def test_cross_attention_with_other_widths_and_the_length_first():
    layer = nn.MultiheadAttention(32, 4, kdim=20, vdim=12).eval()
    q, k, v = torch.randn(5, 2, 32), torch.randn(9, 2, 20), torch.randn(9, 2, 12)
    _, right = layer(q, k, v, average_attn_weights=False)
    with mh.probe.watch(layer) as calls:
        layer(q, k, v)
    close(calls[0].weights(), right)


def test_an_encoder_in_eval_is_seen_and_its_fast_path_comes_back():
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    x, padding = torch.randn(2, 9, 32), torch.arange(9) >= torch.tensor([[9], [5]])
    before = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with mh.probe.watch(model) as calls:
            out = model(x, src_key_padding_mask=padding)
    assert torch.backends.mha.get_fastpath_enabled() is before is True
    assert [call.where for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    torch.testing.assert_close(out[0], plain[0], rtol=0, atol=1e-5)  # the fast path sums otherwise
    assert calls[0].mass(padding).abs().max() == 0


def test_a_decoder_is_seen_without_a_change():
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2).eval()
    x, memory = torch.randn(2, 9, 32), torch.randn(2, 5, 32)
    causal = nn.Transformer.generate_square_subsequent_mask(9)
    plain = model(x, memory, tgt_mask=causal, tgt_is_causal=True)
    with mh.probe.watch(model) as calls:
        assert model(x, memory, tgt_mask=causal, tgt_is_causal=True).equal(plain)
    assert [call.call.k.shape[2] for call in calls] == [9, 5, 9, 5]
    assert calls[0].mass_behind(-1).abs().max() == 0


class Flex(nn.Module):
    """FlexAttention with a mask and a bias, both functions of indices."""

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        slope = torch.tensor([0.1, 0.2, 0.3, 0.4])
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 9, 9, device="cpu")
        return flex_attention(q, q, q, lambda s, b, h, i, j: s - slope[h] * (i - j), mask)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_seen():
    q = torch.randn(2, 4, 9, 8)
    bias = -0.1 * torch.arange(1, 5)[:, None, None] * (torch.arange(9)[:, None] - torch.arange(9))
    _, right = mh.attention_with_weights(q, q, q, mh.Causal(), bias=bias[None])
    with torch.no_grad():
        plain = Flex()(q)
        with mh.probe.watch(model := Flex()) as calls:
            assert model(q).equal(plain)
    assert [call.source for call in calls] == ["flex"]
    close(calls[0].weights(), right)


def test_scaled_dot_product_attention_is_seen_in_all_its_forms():
    forms = [
        ((2, 4, 5, 8), (2, 4, 9, 8), {}),
        ((2, 4, 5, 8), (2, 4, 9, 8), {"is_causal": True}),
        ((2, 4, 5, 8), (2, 2, 9, 8), {"enable_gqa": True}),
        ((2, 4, 5, 8), (2, 4, 9, 8), {"attn_mask": torch.rand(5, 9) < 0.5}),
        ((2, 4, 5, 8), (2, 4, 9, 8), {"attn_mask": torch.randn(2, 1, 5, 9), "scale": 0.3}),
        ((6, 5, 8), (6, 9, 8), {"attn_mask": torch.randn(6, 5, 9)}),
        ((5, 8), (9, 8), {}),
        ((2, 3, 4, 5, 8), (2, 3, 4, 9, 8), {"attn_mask": torch.randn(2, 3, 1, 5, 9)}),
    ]

    class Model(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, options: dict) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, k, **options)

    for q_shape, k_shape, options in forms:
        q, k = torch.randn(q_shape), torch.randn(k_shape)
        with mh.probe.watch(model := Model()) as calls:
            out = model(q, k, options)
        weights = calls[0].weights()
        heads = k if k.ndim < 4 else k.repeat_interleave(weights.shape[1] // k.shape[-3], dim=-3)
        mixed = weights.view(*q_shape[:-1], 9) @ heads
        torch.testing.assert_close(mixed, out, rtol=0, atol=1e-5)
