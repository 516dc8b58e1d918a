"""Reformer's and Nyströmformer's attention in Hugging Face, given the same weights."""

import pytest
import torch
from torch import Tensor
from transformers import NystromformerConfig, ReformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

import manyheads as mh


def heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_reformers_lsh_attention_is_ours_where_there_is_one_bucket(
    causal: bool, padded: bool
) -> None:
    """With more chunks they differ on purpose: Reformer's first chunk sees the last, round a ring,
    and a key counts once for each round that shows it; ours has no ring, and counts each key once.
    """
    torch.manual_seed(0)
    config = ReformerConfig(
        hidden_size=32, num_attention_heads=4, attention_head_size=8, lsh_attn_chunk_length=64,
        num_buckets=2, num_hashes=2, lsh_attention_probs_dropout_prob=0.0, is_decoder=causal,
    )  # fmt: skip
    theirs = LSHSelfAttention(config).eval()
    x = torch.randn(2, 21, 32)
    keep = torch.arange(21) < torch.tensor([[21], [13]])
    expected = theirs(x, attention_mask=keep if padded else None).hidden_states
    q, v = heads(theirs.query_key(x), 4), heads(theirs.value(x), 4)
    mask = mh.Causal() if causal else None
    if padded:
        mask = mh.Padding(keep) if mask is None else mask & mh.Padding(keep)
    real = keep if padded else torch.ones_like(keep)
    # The same by hand: keys of norm 1, and a token's own only where there is no other.
    unit, last_resort = torch.nn.functional.normalize(q, dim=-1), -1e5 * torch.eye(21)
    by_hand = mh.attention(q, unit, v, mask, bias=last_resort, scale=1.0)
    for ours in (mh.lsh_attention(q, q, v, mask, bucket_size=64), by_hand):
        output = ours.transpose(1, 2).flatten(2)
        torch.testing.assert_close(output[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("length", "landmarks"), [(24, 8), (64, 16), (16, 16)])
def test_nystromformers_attention_is_ours_without_its_convolution(
    length: int, landmarks: int
) -> None:
    """One sequence of one head: theirs scales every inverse of a batch by the largest sum of all,
    so that neighbours change each other's output; ours scales each by its own. And theirs lets
    padding into the landmarks, which ours leaves out: nothing is padded here.
    """
    torch.manual_seed(0)
    config = NystromformerConfig(
        hidden_size=16, num_attention_heads=1, num_landmarks=landmarks,
        segment_means_seq_len=length, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = NystromformerSelfAttention(config).eval()
    theirs.conv_kernel_size = None
    x = torch.randn(1, length, 16)
    expected = theirs(x)[0]
    q, k, v = (heads(project(x), 1) for project in (theirs.query, theirs.key, theirs.value))
    output = mh.nystrom_attention(q, k, v, landmarks=landmarks)
    torch.testing.assert_close(output.transpose(1, 2).flatten(2), expected, atol=1e-5, rtol=1e-5)
