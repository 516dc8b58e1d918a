"""Models of transformers write the same text through our caches as through theirs."""

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import manyheads as mh
from manyheads.cache import BlockPool, Cache
from manyheads.errors import CacheError
from manyheads.interop.huggingface.cache import HuggingFaceCache

NUMBERS: dict[str, Any] = {
    "vocab_size": 41, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": 3, "initializer_range": 0.3,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "vocab_size": 41, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64,
    "bos_token_id": None, "eos_token_id": 3, "initializer_range": 0.3,
}  # fmt: skip
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt-2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**NUMBERS)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**NUMBERS)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**NUMBERS, sliding_window=6)),
}
KINDS: dict[str, Callable[[], Cache]] = {
    "growing": mh.GrowingCache,
    "fixed": lambda: mh.FixedCache(40),
    "paged": lambda: mh.PagedCache(BlockPool(3)),
    "quantized, recent": lambda: mh.QuantizedCache(8, recent=40),
    "ring": lambda: mh.RingCache(6),
}
TOKENS = torch.tensor([[5, 9, 7, 8, 11, 30, 31], [0, 0, 0, 4, 6, 22, 21], [0, 14, 15, 9, 2, 6, 5]])
THERE = TOKENS.ne(0).long()
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "drawn": {"do_sample": True, "top_k": 10},
    "alone": {"rows": 1},
}
EXACT_PAIRS = [(m, k) for m in MODELS for k in KINDS if (k == "ring") <= (m == "mistral")]


def model(name: str) -> PreTrainedModel:
    torch.manual_seed(3)
    return MODELS[name]().double().eval()


def ours(like: PreTrainedModel, kind: Callable[[], Cache]) -> HuggingFaceCache:
    return HuggingFaceCache([kind() for _ in range(like.config.num_hidden_layers)])


def write(like: PreTrainedModel, cache: Any, *, rows: int = 3, **options: Any) -> list[list[int]]:
    torch.manual_seed(4)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, **options}
    text = like.generate(TOKENS[:rows], attention_mask=THERE[:rows], cache=cache, **options)
    return text[:, TOKENS.shape[1] :].tolist()


@functools.cache
def written_by_theirs(name: str, way: str) -> list[list[int]]:
    like = model(name)
    return write(like, DynamicCache(config=like.config), **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "kind"), EXACT_PAIRS)
def test_exact_caches_write_the_same_text(name: str, kind: str, way: str) -> None:
    like, right = model(name), written_by_theirs(name, way)
    assert len({*map(tuple, right)}) == len(right), "a text that says something"
    assert write(like, ours(like, KINDS[kind]), **WAYS[way]) == right


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt-2", "llama", "qwen2"])
@pytest.mark.parametrize(("bits", "most"), [(8, 0.02), (4, 0.3)])
def test_rounded_caches_come_close(name: str, bits: int, most: float) -> None:
    like = model(name)
    tokens = torch.randint(4, 41, (2, 60), generator=torch.Generator().manual_seed(0))
    cache = ours(like, lambda: mh.QuantizedCache(bits, recent=4, group=8))
    right = like(tokens).logits
    parts = [like(part, cache=cache).logits for part in tokens.split([40] + [1] * 20, dim=1)]
    off = (torch.cat(parts, dim=1) - right).norm() / right.norm()
    assert 0 < off < most


def test_a_draft_of_theirs_rolls_ours_back() -> None:
    like, draft = model("llama"), MODELS["llama"]().double().eval()
    right = write(like, DynamicCache(config=like.config), rows=1)
    for kind in ("growing", "paged", "fixed"):
        cache = ours(like, KINDS[kind])
        assert write(like, cache, rows=1, assistant_model=draft) == right


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_tokens_leave_and_come_as_theirs_do(kind: str) -> None:
    like = model("mistral")
    caches = [ours(like, KINDS[kind]), DynamicCache(config=like.config)]
    logits = []
    for cache in caches:
        like(TOKENS[:2, :4], cache=cache)
        cache.crop(-1)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([True, False, True, True]))
        cache.reorder_cache(torch.tensor([2, 0, 1]))
        logits.append(like(TOKENS[:, :3], cache=cache).logits)
        assert cache.get_seq_length() == 6
    torch.testing.assert_close(*logits, rtol=0, atol=1e-10)
    caches[0].reset()
    assert caches[0].get_seq_length() == 0
    again = like(TOKENS, cache=caches[0]).logits
    torch.testing.assert_close(again, like(TOKENS).logits, rtol=0, atol=1e-10)


def test_what_cannot_serve_is_refused() -> None:
    filled = mh.GrowingCache()
    filled.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    with pytest.raises(CacheError, match="a cache must be empty at first; got one of 3 tokens"):
        HuggingFaceCache([filled])
    for cache in (mh.RingCache(4, 1), mh.CrossCache()):
        with pytest.raises(CacheError, match="a cache must hold tokens that stand side by side"):
            HuggingFaceCache([cache])
    with pytest.raises(CacheError, match="tokens_to_remove must be 0 or less; got tokens_to_rem"):
        HuggingFaceCache([mh.GrowingCache()]).crop(3)


def test_importing_the_package_imports_no_transformers() -> None:
    code = "import sys, manyheads, manyheads.models, manyheads.interop; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not any(name.startswith("transformers") for name in done.stdout.split())
