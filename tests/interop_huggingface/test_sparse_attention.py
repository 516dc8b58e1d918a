"""Attention to few keys in Hugging Face, given the same weights: its layers are our masks."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BigBirdConfig, LongformerConfig, ReformerConfig, SwinConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.reformer.modeling_reformer import LocalSelfAttention
from transformers.models.swin.modeling_swin import SwinLayer

import manyheads as mh


def heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def merged(output: Tensor) -> Tensor:
    return output.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("global_at", [(), (0,), (0, 5, 29)])
@pytest.mark.parametrize(("window", "length"), [(4, 36), (6, 42)])
@torch.no_grad()
def test_longformer_is_two_calls_for_it_projects_global_tokens_twice(
    window: int, length: int, global_at: tuple[int, ...]
) -> None:
    """Every row under ``Window | Global`` with the first projections; rows of global tokens are
    then replaced by a second call, with projections of their own, in which they see all.

    Its ``attention_window`` counts neighbours of both sides: w is ``Window(w // 2 + 1)``. Its
    length must be a multiple of w, so that the rows here have odd lengths by their padding. Rows of
    padding are 0 there, and of no meaning here.
    """
    config = LongformerConfig(
        hidden_size=32, num_attention_heads=4, attention_window=[window],
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = LongformerSelfAttention(config, layer_id=0).eval()
    x = torch.randn(2, length, 32)
    keep = torch.arange(length) < torch.tensor([[length - 1], [31]])
    tags = torch.zeros(2, length, dtype=torch.bool)
    tags[:, list(global_at)] = True
    tags[1, 3] = bool(global_at)  # as many global tokens as a row likes
    tags &= keep
    local = (keep.long() - 1) * 10000 + tags.long() * 10000
    (expected,) = theirs(
        x,
        attention_mask=local,
        is_index_masked=local < 0,
        is_index_global_attn=local > 0,
        is_global_attn=bool(tags.any()),
    )

    def attend(suffix: str, mask: mh.Mask) -> Tensor:
        projections = (getattr(theirs, name + suffix) for name in ("query", "key", "value"))
        return merged(mh.attention(*(heads(project(x), 4) for project in projections), mask))

    near = attend("", (mh.Window(window // 2 + 1) | mh.Global(tags)) & mh.Padding(keep))
    ours = torch.where(tags[..., None], attend("_global", mh.Padding(keep)), near)
    close(ours[keep], expected[keep])


def bigbird_times(plan: Tensor) -> Tensor:
    """How often each block of queries meets each block of keys, (heads, blocks, blocks).

    The first and the last block see all and are seen by all; the others see a block to either side,
    and the plan's, (heads, blocks - 2, random blocks).
    """
    num_heads, middle, _ = plan.shape
    place = torch.arange(middle + 2)
    times = ((place[:, None] - place).abs() <= 1).float().expand(num_heads, -1, -1).clone()
    times[:, :, [0, -1]] = 1
    times[:, 1:-1].scatter_add_(2, plan, torch.ones_like(plan, dtype=torch.float))
    times[:, [0, -1]] = 1
    return times


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("block", "blocks", "count"), [(3, 13, 2), (4, 12, 3), (5, 9, 1)])
@torch.no_grad()
def test_bigbird_is_a_mask_of_its_plan(block: int, blocks: int, count: int, training: bool) -> None:
    """Its random blocks never meet its window or its global blocks, so that each key counts once.

    In eval it has no random blocks: the plan is then all zeros, and the first block, which all see
    anyway, counts once more for each. That is theirs: a model is not evaluated as it was trained. A
    key that counts n times is one with log n added to its scores.
    """
    config = BigBirdConfig(
        hidden_size=16, num_attention_heads=2, block_size=block, num_random_blocks=count,
    )  # fmt: skip
    theirs = BigBirdBlockSparseAttention(config, seed=3).train(training)
    length = block * blocks
    x, keep = torch.randn(2, length, 16), torch.arange(length) < torch.tensor([[length], [23]])
    blocked, band, queries, keys = BigBirdModel.create_masks_for_block_sparse_attn(
        keep.float(), block
    )
    expected, weights = theirs(x, band, queries, keys, blocked, blocked)
    np.random.seed(3)
    lengths, counts = theirs._get_rand_attn_plan(length, block, count)
    plan = theirs._bigbird_block_rand_mask_with_head(
        length, length, block, block, 2, lengths, counts
    )
    times = bigbird_times(torch.tensor(np.stack(plan), dtype=torch.long))
    assert times[:, 1:-1, 0].eq(1 if training else 1 + count).all()
    assert times[:, :, 1:].max() == 1
    bias = times.log().repeat_interleave(block, dim=1).repeat_interleave(block, dim=2)
    mask = mh.Dense(bias.isfinite()[None]) & mh.Padding(keep)
    q, k, v = (heads(project(x), 2) for project in (theirs.query, theirs.key, theirs.value))
    ours = mh.attention(q, k, v, mask, bias=bias.clamp(min=0)[None])
    close(merged(ours)[keep], expected[keep])
    if training:
        _, our_weights = mh.attention_with_weights(q, k, v, mask)
        close(our_weights[0], weights[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "length"), [(1, 0, 35), (2, 1, 35), (0, 0, 35), (1, 0, 4)]
)
@torch.no_grad()
def test_reformers_local_attention_is_a_rule_of_chunks(
    before: int, after: int, length: int, causal: bool
) -> None:
    """Its chunks stand in a ring: the first sees the last, which ``% chunks`` says. (Under
    causality it sees nothing of it.) A text of one chunk sees all.
    """
    config = ReformerConfig(
        hidden_size=32, num_attention_heads=4, attention_head_size=8, is_decoder=causal,
        local_attn_chunk_length=5, local_num_chunks_before=before,
        local_num_chunks_after=0 if causal else after, local_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = LocalSelfAttention(config).eval()
    x, keep = torch.randn(2, length, 32), torch.arange(length) < torch.tensor([[35], [17]])
    expected = theirs(x, attention_mask=keep).hidden_states
    chunks = math.ceil(length / 5)
    near = {step % chunks for step in range(-(0 if causal else after), before + 1)}

    def in_reach(head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return torch.isin((q // 5 - kv // 5) % chunks, torch.tensor(sorted(near)))

    mask = mh.Rule(in_reach, "chunks in a ring") & mh.Padding(keep)
    mask = mask & mh.Causal() if causal else mask
    q, k, v = (heads(project(x), 4) for project in (theirs.query, theirs.key, theirs.value))
    close(merged(mh.attention(q, k, v, mask))[keep], expected[keep])


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize(("height", "width", "tile"), [(8, 12, 4), (9, 15, 3), (7, 9, 4)])
@torch.no_grad()
def test_swins_windows_are_tiles(height: int, width: int, tile: int, shift: int) -> None:
    """Swin rolls the picture, cuts it and hides what met only by rolling; `Tiles` names the pairs.

    Where tiles do not divide the picture, 7 x 9 here, Swin adds pixels of zeros at the right and at
    the bottom, which are seen like any other. That is theirs; ours does it where the picture is
    padded as they do, and otherwise leaves smaller tiles at the border.
    """
    config = SwinConfig(window_size=tile, attention_probs_dropout_prob=0.0)
    layer = SwinLayer(config, 16, (height, width), num_heads=2, shift_size=shift).eval()
    layer.layernorm_before, layer.mlp = nn.Identity(), Nothing()
    theirs = layer.attention
    theirs.relative_position_bias.relative_position_bias_table.normal_()
    x = torch.randn(2, height * width, 16)
    expected = layer(x, (height, width))[0] - x

    down, across = -height % tile, -width % tile
    picture = nn.functional.pad(x.unflatten(1, (height, width)), (0, 0, 0, across, 0, down))
    rows, columns = height + down, width + across
    row, column = torch.arange(rows * columns) // columns, torch.arange(rows * columns) % columns
    far = 2 * tile - 1
    offset = [(at[:, None] - at + tile - 1).clamp(0, far - 1) for at in (row, column)]
    table = theirs.relative_position_bias.relative_position_bias_table
    bias = table[offset[0] * far + offset[1]].permute(2, 0, 1)
    pixels = picture.flatten(1, 2)
    q, k, v = (
        heads(project(pixels), 2) for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    )
    mask = mh.Tiles(columns, tile, shift=shift)
    ours = theirs.o_proj(merged(mh.attention(q, k, v, mask, bias=bias[None])))
    ours = ours.unflatten(1, (rows, columns))[:, :height, :width].flatten(1, 2)
    close(ours, expected)
