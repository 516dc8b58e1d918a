"""Decode with a cache: each token is projected once, and the result is that of one pass.

python examples/03_cache.py
"""

import torch

import manyheads as mh

D_MODEL, NUM_HEADS, LENGTH = 64, 8, 20

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    rotary = mh.Rotary(D_MODEL // NUM_HEADS)
    layer = mh.MultiHeadAttention(D_MODEL, NUM_HEADS, num_kv_heads=2, rotary=rotary).eval()
    x = torch.randn(2, LENGTH, D_MODEL)
    whole = layer(x, mask=mh.Causal())

    # A prompt at once, then token by token. The mask says the same in every call.
    cache = mh.GrowingCache()
    parts = [layer(x[:, :12], mask=mh.Causal(), cache=cache)]
    for step in range(12, LENGTH):
        parts.append(layer(x[:, step : step + 1], mask=mh.Causal(), cache=cache))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    print("cached decoding agrees with one pass over", cache.length, "tokens")

    # Take back a draft of three tokens, as in speculative decoding.
    cache.rollback(3)
    again = layer(x[:, -3:], mask=mh.Causal(), cache=cache)
    torch.testing.assert_close(again, whole[:, -3:])

    # Prompts of different lengths: positions below 0 are no tokens, here on the left.
    positions = torch.stack([torch.arange(12), torch.arange(12) - 4])
    short = layer(x[1:, 4:12], mask=mh.Causal())
    padded = layer(x[:, :12], mask=mh.Causal(), positions=positions, cache=mh.GrowingCache())
    torch.testing.assert_close(padded[1:, 4:], short)
    print("a left-padded prompt agrees with the same prompt alone")

    # What grouped heads save.
    full, full_cache = mh.MultiHeadAttention(D_MODEL, NUM_HEADS).eval(), mh.GrowingCache()
    grouped_cache = mh.GrowingCache()
    full(x, mask=mh.Causal(), cache=full_cache)
    layer(x, mask=mh.Causal(), cache=grouped_cache)
    print(
        f"8 heads of keys take {full_cache.memory_bytes()} bytes, "
        f"2 heads {grouped_cache.memory_bytes()}"
    )
