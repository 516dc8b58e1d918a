"""Who may see whom: masks are written as sentences and drawn before they are used.

python examples/02_masks.py
"""

import torch

import manyheads as mh

SENTENCES = {
    "A decoder: nobody sees the future.": mh.Causal(),
    "The last three only.": mh.Causal() & mh.Window(3),
    "... but everyone still sees the first (Longformer, StreamingLLM).": (
        mh.Causal() & (mh.Window(3) | mh.Global(0))
    ),
    "A prompt of four that is read both ways.": mh.Causal() | mh.Prefix(4),
    "Two documents in one row.": (
        mh.Causal() & mh.Documents(torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]]))
    ),
    "Two places of padding at the end.": mh.Padding(lengths=torch.tensor([6])),
    "A rule of your own.": mh.Causal() & mh.Rule(lambda head, q, kv: (q - kv) % 2 == 0, "even"),
}

if __name__ == "__main__":
    for sentence, mask in SENTENCES.items():
        print(f"{sentence}\n{mask.describe(8)}\n{mask.draw(8)}\n")

    # One mask serves a whole pass and a single step: positions decide, not indices.
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 8, 16) for _ in range(3))
    mask = mh.Causal() & mh.Window(3)
    whole = mh.attention(q, k, v, mask)
    last = mh.attention(q[:, :, -1:], k, v, mask)
    torch.testing.assert_close(last, whole[:, :, -1:])

    # Padding may hold anything, NaN too.
    k[:, :, 6:], v[:, :, 6:] = torch.nan, torch.nan
    assert mh.attention(q, k, v, mh.Padding(lengths=torch.tensor([6]))).isfinite().all()

    # Which kernel does the call, and what would make it faster?
    mh.explain(q, k, v, mask, softcap=30.0)
