"""Layers that attend in chunks, beside what they give themselves, laid where the keys stand."""

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.testing import assert_close

import manyheads as mh

WORDS = {
    "vocab_size": 70,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
PAIR = {
    "vocab_size": 70,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def padded(length: int, last: int) -> dict[str, Tensor]:
    keep = torch.arange(length) < torch.tensor([[length], [last]])
    return {"input_ids": torch.randint(3, 60, (2, length)), "attention_mask": keep.long()}


@torch.no_grad()
def seen(model: torch.nn.Module, inputs: dict[str, Tensor], layers: str | None = None) -> list:
    """The calls of a run that stays as it is."""
    plain = model(**inputs)[0]
    with mh.probe.watch(model, layers=layers) as calls:
        assert model(**inputs)[0].equal(plain)
    return calls


def laid(window: Tensor, at: list[list[int]]) -> Tensor:
    """Longformer's weights, of global keys and then of neighbours, where their keys stand."""
    batch, heads, length, width = window.shape
    first = max(map(len, at))
    beside = (width - first) // 2
    whole = torch.zeros(batch, heads, length, length)
    for row, places in enumerate(at):
        for column, place in enumerate(places):
            whole[row, :, :, place] += window[row, :, :, column]
        for query in range(length):
            for step in range(-beside, beside + 1):
                if 0 <= query + step < length:
                    whole[row, :, query, query + step] += window[
                        row, :, query, first + beside + step
                    ]
    return whole


@pytest.mark.parametrize("at", [[[0], [0]], [[0, 7], [3]], [[], []]])
@pytest.mark.parametrize("led", [False, True])
def test_longformer_is_seen_as_a_window_and_the_view_of_its_global_tokens(at, led):
    inputs = padded(18, 13)  # to which the model adds two, for a multiple of its window
    marks = torch.zeros(2, 18, dtype=torch.int64)
    for row, places in enumerate(at):
        marks[row, places] = 1
    inputs["global_attention_mask"] = marks
    if led:
        config = hf.LEDConfig(**PAIR, attention_window=4)
        model, names = (
            hf.LEDModel(config).eval(),
            ("encoder_attentions", "encoder_global_attentions"),
        )
    else:
        config = hf.LongformerConfig(**WORDS, attention_window=4)
        model, names = hf.LongformerModel(config).eval(), ("attentions", "global_attentions")
    calls = seen(model, inputs, "encoder" if led else None)
    own = model(**inputs, output_attentions=True)
    windows = [call for call in calls if call.output.shape[2] == 20]
    assert len(windows) == 2 and {call.refusal for call in calls} == {None}
    for call, right in zip(windows, own[names[0]], strict=True):
        weights = call.weights()
        assert_close(weights[:, :, :18, :18], laid(right, at)[:, :, :18, :18], rtol=0, atol=1e-5)
        assert not weights[1, :, 13:].any() and not weights[:, :, :, 18:].any()
    few = [call for call in calls if call.output.shape[2] < 20]
    assert len(few) == (2 if any(at) else 0)
    for call, right in zip(few, own[names[1]] if few else (), strict=True):
        for row, places in enumerate(at):
            found = call.weights()[row, :, : len(places), :18]
            assert_close(found, right[row, :, :18, : len(places)].mT, rtol=0, atol=1e-5)


@pytest.mark.parametrize("random_blocks", [1, 2])
def test_big_bird_is_seen_in_blocks_with_each_copy_of_a_key_counted(random_blocks):
    config = hf.BigBirdConfig(
        **WORDS, sep_token_id=66, block_size=4, num_random_blocks=random_blocks
    )
    model = hf.BigBirdModel(config).eval()
    inputs = padded(64, 55)
    calls = seen(model, inputs)
    own = model(**inputs, output_attentions=True).attentions
    assert len(calls) == len(own) == 2
    real = inputs["attention_mask"].bool()[:, None, :, None]
    for call, right in zip(calls, own, strict=True):
        # In eval it takes the first block for each that it would have drawn, and tells one copy.
        once = right.clone()
        once[:, :, 4:-4, :4] *= 1 + random_blocks
        assert_close(call.weights(), once * real, rtol=0, atol=1e-5)
        sums = call.weights().sum(dim=-1, keepdim=True)
        assert_close(sums, real.float().expand_as(sums), rtol=0, atol=1e-5)


def test_big_bird_in_training_is_refused_for_its_blocks_are_drawn():
    config = hf.BigBirdConfig(**WORDS, sep_token_id=66, block_size=4, num_random_blocks=1)
    with mh.probe.watch(model := hf.BigBirdModel(config).train()) as calls:
        model(**padded(64, 64))
    with pytest.raises(
        mh.errors.ProbeError, match=r"drawn at random and not told\. Call model.eval"
    ):
        calls[0].weights()


def test_the_encoder_of_pegasus_in_blocks_is_seen():
    config = hf.BigBirdPegasusConfig(**PAIR, block_size=4, num_random_blocks=1)
    model = hf.BigBirdPegasusModel(config).eval()
    calls = seen(model, {**padded(64, 50), "decoder_input_ids": torch.ones(2, 3).long()}, "encoder")
    assert [call.refusal for call in calls] == [None, None]
    sums = calls[1].weights().sum(dim=-1)
    assert_close(sums[0], torch.ones(4, 64), rtol=0, atol=1e-5)


def reformer(causal, *, rounds=2, kinds=("local", "lsh"), after=0, writes=False):
    config = hf.ReformerConfig(
        vocab_size=70, hidden_size=32, num_attention_heads=4, attention_head_size=8,
        feed_forward_size=64, axial_pos_embds=False, attn_layers=list(kinds), num_buckets=4,
        num_hashes=rounds, is_decoder=causal, lsh_attn_chunk_length=4, local_attn_chunk_length=4,
        local_num_chunks_after=after, lsh_num_chunks_after=after, max_position_embeddings=64,
        hash_seed=1,
    )  # fmt: skip
    return (hf.ReformerModelWithLMHead if writes else hf.ReformerModel)(config).eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [3, 8, 22])
def test_reformers_neighbours_are_seen_where_they_stand(causal, length):
    model = reformer(causal, kinds=("local", "local"))
    inputs = padded(length, length - 1)
    calls = seen(model, inputs)
    own = model(**inputs, output_attentions=True).attentions
    for call, right in zip(calls, own, strict=True):
        if right.ndim == 5:  # (batch, heads, chunks, queries, the chunk before and one's own)
            chunks = right.shape[2]
            whole = right.new_zeros(2, 4, chunks, 4, chunks, 4)
            for chunk in range(chunks):
                whole[:, :, chunk, :, chunk - 1] += right[:, :, chunk, :, :4]
                whole[:, :, chunk, :, chunk] += right[:, :, chunk, :, 4:]
            right = whole.flatten(4).flatten(2, 3)
        real = torch.zeros(2, right.shape[2], dtype=torch.bool)
        real[:, :length] = inputs["attention_mask"].bool()
        assert_close(call.weights(), right * real[:, None, :, None], rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rounds", "after"), [(1, 0), (3, 0), (2, 1)])
def test_reformers_hashes_are_seen_as_one_softmax_that_gives_its_output(causal, rounds, after):
    model = reformer(causal, rounds=rounds, kinds=("lsh", "local"), after=after)
    inputs = padded(16, 13)
    with torch.no_grad(), mh.probe.watch(model, layers="*.layers.0") as calls:
        model(**inputs)
    call = calls[0]
    weights, real = call.weights(), inputs["attention_mask"].bool()[:, None, :, None]
    mixed = weights @ call.call.v
    # Where a token sees itself alone, its score of -1e5 leaves fp32 no digits for the rest.
    tolerance = 0.02 if causal else 1e-5
    assert_close(mixed, call.output, rtol=tolerance, atol=1e-5)
    assert_close(weights.sum(dim=-1, keepdim=True), real.float().expand(2, 4, 16, 1))
    assert not causal or not weights.triu(1).any()


@pytest.mark.parametrize("kind", ["local", "lsh"])
@torch.no_grad()
def test_each_step_of_reformers_neighbours_is_seen_and_a_step_of_its_hashes_refused(kind):
    model = reformer(True, kinds=(kind, kind), writes=True)
    options = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    prompt = torch.randint(3, 60, (1, 9 if kind == "local" else 2))  # its hashes want short ones
    with mh.probe.watch(model, layers="*.layers.0") as calls:
        model.generate(prompt, **options)
    first, step = calls
    assert first.refusal is None
    if kind == "local":
        assert step.weights().shape == (1, 4, 1, 6)  # of the chunk before, and its own so far
        return
    with pytest.raises(mh.errors.ProbeError, match="must read its text at once; got a step with"):
        step.weights()


def test_a_change_of_what_heads_mixed_reaches_the_model_and_gradients_flow():
    config = hf.LongformerConfig(**WORDS, attention_window=4)
    model = hf.LongformerModel(config).eval()
    inputs = padded(16, 16)
    inputs["global_attention_mask"] = torch.zeros(2, 16).long()
    inputs["global_attention_mask"][:, 2] = 1
    with mh.probe.watch(model, each=lambda call: (call, call.mixed.tensor)) as found:
        out = model(**inputs)[0]
    (window, mixed), (few, _) = found[:2]
    heads = model.encoder.layer[0].attention.self.num_heads
    split = mixed.unflatten(-1, (heads, -1)).transpose(1, 2)
    assert_close(few.mixed.heads(), split[:, :, 2:3])
    assert not window.mixed.heads()[:, :, 2].any()
    assert torch.autograd.grad(out.sum(), mixed)[0].any()
    places = []
    with mh.probe.watch(model, change=lambda where, x: places.append(where) or 0 * x):
        changed = model(**inputs)[0]
    assert places == [f"encoder.layer.{i}.attention.self" for i in (0, 1)]
    assert not changed.equal(out)


def test_hooks_come_off_after_an_error_in_a_layer_and_the_next_watch_sees():
    config = hf.LongformerConfig(**WORDS, attention_window=4)
    model = hf.LongformerModel(config).eval()
    layer = model.encoder.layer[0].attention.self
    inputs = padded(16, 16)
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        mh.probe.watch(model),
    ):
        layer(torch.randn(2, 16, 31))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert [call.refusal for call in seen(model, inputs)] == [None, None]


def test_a_layer_without_the_parts_that_were_tested_is_refused_by_name():
    config = hf.LongformerConfig(**WORDS, attention_window=4)
    model = hf.LongformerModel(config).eval()
    for layer in model.encoder.layer:
        part = layer.attention.self.key
        del layer.attention.self.key
        layer.attention.self.__dict__["key"] = part  # it works, and is no child
    with mh.probe.watch(model) as calls:
        model(**padded(16, 16))
    with pytest.raises(mh.errors.ProbeError, match=r"got none of its 'key'\. Install one of those"):
        calls[0].weights()
