"""x-transformers, local-attention and performer-pytorch."""

import copy
from typing import Any

from tests.museum.exhibit import HEADS, UNKNOWN, WIDTH, WORDS, Exhibit, ids, stream
from torch import Tensor, nn

from manyheads.doctor import CacheFacts, Facts

CAUSAL = Facts(causal=True)


def x_transformers(kind: str, *, places: bool = True, **options: Any) -> Any:
    def build() -> nn.Module:
        import x_transformers

        sizes = {"dim": WIDTH, "depth": 1, "heads": HEADS, "attn_dim_head": 6}
        layers = getattr(x_transformers, kind)(**sizes, **options)
        return x_transformers.TransformerWrapper(
            num_tokens=WORDS, max_seq_len=64, attn_layers=layers, use_abs_pos_emb=places
        )

    return build


class Cached(nn.Module):
    """A decoder that is handed its cache back.

    Args:
        aged: Whether it is told how many tokens are new, which x-transformers takes to be one.
    """

    def __init__(self, aged: bool, **options: Any) -> None:
        super().__init__()
        self.model, self.aged = x_transformers("Decoder", **options)(), aged

    def forward(self, tokens: Tensor, past: Any = None) -> Any:
        age = {"cache_age": tokens.shape[1]} if self.aged and past is not None else {}
        return self.model(
            tokens, cache=past, return_intermediates=True, input_not_include_cache=True, **age
        )


def reordered(cache: Any, index: Tensor) -> Any:
    made = copy.copy(cache)
    made.attn_intermediates = [copy.copy(each) for each in cache.attn_intermediates]
    for each in made.attn_intermediates:
        each.cached_kv = tuple(tensor[index] for tensor in each.cached_kv)
    return made


def local(**options: Any) -> Any:
    def build() -> nn.Module:
        from local_attention import LocalMHA

        return LocalMHA(dim=WIDTH, window_size=4, heads=HEADS, dim_head=6, **options)

    return build


def performer(**options: Any) -> Any:
    def build() -> nn.Module:
        from performer_pytorch import SelfAttention

        return SelfAttention(dim=WIDTH, heads=HEADS, dim_head=6, nb_features=16, **options)

    return build


def written(
    name: str, kind: str = "Decoder", facts: Facts = CAUSAL, *, places: bool = True, **options: Any
) -> Exhibit:
    build = x_transformers(kind, places=places, **options)
    return Exhibit(f"x-transformers-{name}", build, (ids(),), {}, facts, package="x_transformers")


CACHE = Facts(causal=True, cache=CacheFacts("past", output=1, reorder=reordered))


def cached(name: str, aged: bool, code: str = "", **options: Any) -> Exhibit:
    return Exhibit(
        f"x-transformers-{name}", lambda: Cached(aged, **options), (ids(),), {}, CACHE, code,
        "x_transformers",
    )  # fmt: skip


HEALTHY = [
    written("decoder"),
    written("decoder-fused", attn_flash=True),
    written("rotary", places=False, rotary_pos_emb=True),
    written("alibi", places=False, alibi_pos_bias=True),
    written("t5-bias", places=False, rel_pos_bias=True),
    written("one-kv-head", attn_one_kv_head=True),
    written("grouped", attn_kv_heads=2),
    written("qk-norm", attn_qk_norm=True),
    written("memory", attn_num_mem_kv=2),
    written("encoder", "Encoder", UNKNOWN),
    cached("cache-age", True),
    cached("cache-age-rotary", True, places=False, rotary_pos_emb=True),
    Exhibit("local-attention", local(causal=True), (stream(12),), {}, CAUSAL,
            package="local_attention"),
    Exhibit("local-attention-both", local(causal=False), (stream(12),),
            package="local_attention"),
    Exhibit("performer", performer(), (stream(),), package="performer_pytorch"),
]  # fmt: skip

BROKEN = [
    cached("cache-several-tokens", False, "cache_mismatch"),
    cached("cache-several-tokens-rotary", False, "cache_mismatch", places=False,
           rotary_pos_emb=True),
    Exhibit("performer-causal", performer(causal=True), (stream(),), {}, CAUSAL, "future_leak",
            "performer_pytorch"),
]  # fmt: skip
