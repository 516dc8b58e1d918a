"""Models as strangers write them, whole and with one mistake each, named by `wrong`."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, WORDS = 32, 4, 61


def split(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


class FusedAttention(nn.Module):
    """One matrix for queries, keys and values, and a triangle in a buffer."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.n_head, self.dropout = wrong, HEADS, 0.1
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("tril", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Any) -> Any:
        B, T, C = x.shape
        q, k, v = (split(part, self.n_head) for part in self.c_attn(x).split(C, dim=2))
        if self.wrong == "dropout":
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        else:
            att = q @ k.transpose(-2, -1) / math.sqrt(C if self.wrong == "scale" else C // HEADS)
            att = att.masked_fill(self.tril[:, :, :T, :T] == 0, float("-inf"))
            att = F.softmax(att, dim=-1)
            if self.wrong == "detach":
                att = att.detach()
            y = att @ v
        y = y.contiguous() if self.wrong == "merge" else y.transpose(1, 2).contiguous()
        return self.c_proj(y.view(B, T, C))


class FusedGPT(nn.Module):
    """A small language model with learned positions and a tied head."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.ln_f = nn.LayerNorm(WIDTH)
        self.attn = FusedAttention(wrong)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        if wrong == "tied":
            self.lm_head.weight = self.wte.weight

    def forward(self, idx: Any) -> Any:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return self.lm_head(self.ln_f(x))


def rotate(x: Tensor, first: int) -> Tensor:
    """Rotary by halves of (batch, heads, length, head_dim)."""
    half = x.shape[-1] // 2
    freqs = 10000.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    places = torch.arange(first, first + x.shape[-2], device=x.device, dtype=x.dtype)
    angles = places[:, None] * freqs
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class LlamaAttention(nn.Module):
    """Rotary, two kv heads for four, and a dict for the past."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.num_heads, self.num_kv_heads, self.head_dim = wrong, 4, 2, 8
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, 16, bias=False)
        self.v_proj = nn.Linear(WIDTH, 16, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any, state: Any = None) -> Any:
        past = 0 if not state else state["k"].shape[2]
        q = split(self.q_proj(x), 4)
        k, v = split(self.k_proj(x), 2), split(self.v_proj(x), 2)
        first = 0 if self.wrong == "restart" else past
        q, k = rotate(q, first), rotate(k, first)
        if self.wrong == "values":
            v = rotate(v, first)
        if state is not None:
            if past:
                k = torch.cat([state["k"], k], dim=2)
                both = [v, state["v"]] if self.wrong == "order" else [state["v"], v]
                v = torch.cat(both, dim=2)
            state["k"], state["v"] = k, v
        if self.wrong == "tile":
            k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
        else:
            k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        kv_len = k.shape[2]
        if self.wrong == "corner":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            rows = torch.arange(past, kv_len)[:, None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=rows >= torch.arange(kv_len))
        return self.o_proj(y.transpose(1, 2).flatten(2))


class LlamaLM(nn.Module):
    """RMS norms and a gated feed forward around it; the past is a dict that is changed."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.input_norm, self.post_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.norm = nn.RMSNorm(WIDTH)
        self.self_attn = LlamaAttention(wrong)
        self.gate, self.up = nn.Linear(WIDTH, 48), nn.Linear(WIDTH, 48)
        self.down = nn.Linear(48, WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Any, state: Any = None) -> Any:
        h = self.embed_tokens(tokens)
        h = h + self.self_attn(self.input_norm(h), state)
        y = self.post_norm(h)
        h = h + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.lm_head(self.norm(h))


class BertSelfAttention(nn.Module):
    """Hidden states and an additive mask, as Hugging Face's first classes were written."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.num_attention_heads, self.attention_head_size = wrong, HEADS, 8
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.dense = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x: Any) -> Any:
        return x.view(*x.size()[:-1], self.num_attention_heads, -1).permute(0, 2, 1, 3)

    def forward(self, hidden_states: Any, attention_mask: Any = None) -> Any:
        query = self.transpose_for_scores(self.query(hidden_states))
        key = self.transpose_for_scores(self.key(hidden_states))
        value = self.transpose_for_scores(self.value(hidden_states))
        if self.wrong == "swap":
            key, value = value, key
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        if attention_mask is not None and self.wrong != "lost":
            scores = scores + attention_mask
        probs = self.dropout(nn.functional.softmax(scores, dim=-1))
        context = torch.matmul(probs, value).permute(0, 2, 1, 3).contiguous()
        context = self.dense(context.view(*context.size()[:-2], WIDTH))
        return (context, probs) if self.wrong == "probs" else (context,)


class BertModel(nn.Module):
    """input_ids and attention_mask in, a dict out."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.word_embeddings = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.position_embeddings = nn.Embedding(64, WIDTH)
        self.attention = BertSelfAttention(wrong)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.intermediate, self.output = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def extended(self, mask: Any, dtype: Any) -> Any:
        mask = mask.to(dtype)
        if self.wrong == "axis":
            return (1.0 - mask[:, None, :, None]) * -10000.0
        mask = mask[:, None, None, :]
        if self.wrong == "inverted":
            return mask * -10000.0
        if self.wrong == "added":
            return mask
        return (1.0 - mask) * -10000.0

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        places = torch.arange(input_ids.size(1), device=input_ids.device)
        if self.wrong == "first_real":
            places = places.expand_as(input_ids)
        x = self.word_embeddings(input_ids) + self.position_embeddings(places)
        mask = self.extended(attention_mask, x.dtype)
        attended = self.attention(x, mask)
        x = self.norm_1(x + attended[0])
        x = self.norm_2(x + self.output(F.gelu(self.intermediate(x))))
        return {"last_hidden_state": x, "attentions": attended[1:]}


class TorchBlock(nn.Module):
    """A wrapper of torch's own layer."""

    def __init__(self, wrong: str = "", causal: bool = False) -> None:
        super().__init__()
        self.wrong, self.causal = wrong, causal
        self.norm = nn.LayerNorm(WIDTH)
        self.mha = nn.MultiheadAttention(WIDTH, HEADS, batch_first=wrong != "first")

    def forward(self, x: Any, padding_mask: Any = None) -> Any:
        y, hidden = self.norm(x), None
        if self.causal:
            ones = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
            hidden = ones.tril() if self.wrong == "tril" else ones.triu(1)
        if padding_mask is not None and self.wrong == "keep":
            padding_mask = ~padding_mask
        return x + self.mha(y, y, y, key_padding_mask=padding_mask, attn_mask=hidden)[0]


class ViT(nn.Module):
    """Patches, a class token, einsum."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.patch = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.02)
        self.norm1, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Any) -> Any:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        if self.wrong != "place":
            x = x + self.pos_embed
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, 8).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
        y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
        if self.wrong == "norm":
            y = (y - y.mean(0)) / (y.std(0) + 1e-5)
        return self.head(self.norm(x + self.proj(y))[:, 0])


class EinsumAttention(nn.Module):
    """Written in one breath."""

    def __init__(self, axis: int = -1, scale: float = 8**-0.5) -> None:
        super().__init__()
        self.axis, self.scale, self.heads = axis, scale, HEADS
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (part.unflatten(-1, (HEADS, 8)) for part in self.to_qkv(x).chunk(3, dim=-1))
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale
        out = torch.einsum("bhij,bjhd->bihd", sim.softmax(dim=self.axis), v)
        return self.to_out(out.flatten(2))


class Seq2Seq(nn.Module):
    """src and tgt, with padding of the source."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.src_emb, self.tgt_emb = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.enc = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True)
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.generator = nn.Linear(WIDTH, WORDS)

    def forward(self, src: Any, tgt: Any, src_key_padding_mask: Any = None) -> Any:
        memory = self.src_emb(src) + self.places(torch.arange(src.shape[1]))
        memory = self.enc(memory, src_key_padding_mask=src_key_padding_mask)
        y = self.tgt_emb(tgt) + self.places(torch.arange(tgt.shape[1]))
        ahead = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool)
        ahead = ahead.triu(2 if self.wrong == "late" else 1)
        y = self.n1(y + self.self_attn(y, y, y, attn_mask=ahead)[0])
        seen = y if self.wrong == "self" else memory
        keep = None if self.wrong in ("padding", "self") else src_key_padding_mask
        y = self.n2(y + self.cross_attn(y, seen, seen, key_padding_mask=keep)[0])
        return self.generator(y)


class Biased(nn.Module):
    """A causal decoder with ALiBi, or an encoder with T5's buckets and no scale."""

    def __init__(self, kind: str = "alibi", wrong: str = "") -> None:
        super().__init__()
        self.kind, self.wrong = kind, wrong
        self.emb, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.v, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.relative_attention_bias = nn.Embedding(17, HEADS) if kind == "t5" else None

    def forward(self, tokens: Any, mask: Any = None) -> Any:
        x = self.emb(tokens)
        y = self.norm(x)
        q, k, v = (split(each(y), HEADS) for each in (self.q, self.k, self.v))
        n = torch.arange(tokens.shape[1])
        ahead = n[None, :] - n[:, None]
        if self.kind == "t5":
            bias = self.relative_attention_bias(ahead.clamp(-8, 8) + 8).permute(2, 0, 1)[None]
            scores = q @ k.mT + bias
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(q.dtype).min)
            out = scores.softmax(-1) @ v
        else:
            slopes = 2.0 ** -(2.0 * torch.arange(1, HEADS + 1, dtype=q.dtype))
            bias = (slopes[:, None, None] * ahead).masked_fill(ahead > 0, -torch.inf)
            q = q * 8**-0.5 if self.wrong == "twice" else q
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.o(out.transpose(1, 2).flatten(2))


class Windowed(nn.Module):
    """A sliding window of 4 keys, capped scores."""

    def __init__(self, wrong: str = "", window: int = 4, cap: float = 10.0) -> None:
        super().__init__()
        self.wrong, self.window, self.cap = wrong, window, cap
        self.wq, self.wk = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wv, self.wo = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (split(w(x), HEADS) for w in (self.wq, self.wk, self.wv))
        n = torch.arange(x.shape[1])
        back = n[:, None] - n[None, :]
        near = back <= self.window if self.wrong == "wide" else back < self.window
        scores, seen = q @ k.mT * 8**-0.5, (back >= 0) & near
        if self.wrong == "capped_last":
            scores = scores.masked_fill(~seen, -torch.inf)
            scores = self.cap * torch.tanh(scores / self.cap)
        else:
            scores = self.cap * torch.tanh(scores / self.cap)
            scores = scores.masked_fill(~seen, -torch.inf)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Sinks(nn.Module):
    """A learned key and value before all others, or learned logits of nobody."""

    def __init__(self, kind: str = "token", wrong: str = "") -> None:
        super().__init__()
        self.kind, self.wrong = kind, wrong
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        if kind == "token":
            self.sink_k = nn.Parameter(torch.randn(1, HEADS, 1, 8))
            self.sink_v = nn.Parameter(torch.randn(1, HEADS, 1, 8))
        else:
            self.sinks = nn.Parameter(torch.randn(HEADS))

    def forward(self, x: Any) -> Any:
        B, L, _ = x.shape
        q, k, v = (split(each, HEADS) for each in self.qkv(x).chunk(3, -1))
        causal = torch.ones(L, L, dtype=torch.bool).tril()
        if self.kind == "token":
            k = torch.cat([self.sink_k.expand(B, -1, -1, -1), k], dim=2)
            v = torch.cat([self.sink_v.expand(B, -1, -1, -1), v], dim=2)
            if self.wrong == "unshifted":
                causal = F.pad(causal, (0, 1), value=False)
            else:
                causal = F.pad(causal, (1, 0), value=True)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=causal)
        else:
            scores = (q @ k.mT * 8**-0.5).masked_fill(~causal, -torch.inf)
            nobody = self.sinks.view(1, -1, 1, 1).expand(B, -1, L, 1)
            y = torch.cat([scores, nobody], dim=-1).softmax(-1)[..., :-1] @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A sigmoid gate behind causal attention, values of another path in eval."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.q_norm, self.k_norm = nn.RMSNorm(8), nn.RMSNorm(8)

    def forward(self, x: Any) -> Any:
        q, k = split(self.q_proj(x), HEADS), split(self.k_proj(x), HEADS)
        v = split(self.v_proj(x), HEADS)
        if self.wrong != "unused" and (self.wrong != "mode" or self.training):
            q, k = self.q_norm(q) * 3, self.k_norm(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        told = x.mean(1, keepdim=True) if self.wrong == "mean" else x
        return self.o_proj(y.transpose(1, 2).flatten(2) * self.gate(told).sigmoid())


class Packed(nn.Module):
    """Documents packed in a row."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.attn_in, self.attn_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, document_ids: Any) -> Any:
        q, k, v = (split(each, HEADS) for each in self.attn_in(x).chunk(3, -1))
        mine, theirs = document_ids[:, None, :, None], document_ids[:, None, None, :]
        same = mine >= theirs if self.wrong == "later" else mine == theirs
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=same & causal)
        return self.attn_out(y.transpose(1, 2).flatten(2))
