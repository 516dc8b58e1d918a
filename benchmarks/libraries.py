"""Other libraries' attention, called as their own layers call it, where they are installed.

    pip install -e .[peers]

None of them is needed; what is missing is missing from the tables, which say so.
"""

import contextlib
import importlib
import io
from collections.abc import Callable, Iterable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyheads as mh
from manyheads.functional.block_mask import block_mask

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes q, k, v, each (batch, heads, length, head_dim), and gives an output."""

Peer = Callable[[int, int], Attend]
"""Makes an `Attend` for a length and a size: a window, features, or a bucket."""


def made(peers: dict[str, Peer], length: int, size: int) -> dict[str, Attend]:
    """The peers that are installed, ready for a length."""
    ready = {}
    for name, peer in peers.items():
        with contextlib.suppress(ImportError):
            ready[name] = peer(length, size)
    return ready


def note(peers: Iterable[str], ready: Iterable[str]) -> str | None:
    """What a table says of peers that are not there."""
    missing = sorted(set(peers) - set(ready))
    return f"not installed: {', '.join(missing)}" if missing else None


def _load(module: str) -> ModuleType:
    # Some greet on import, or tell of kernels that they lack.
    with contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module(module)


def compiled_flex(length: int, size: int) -> Attend:
    """torch's FlexAttention, compiled, with a causal window; no gradient on the CPU.

    Its blocks come from our plan and are the same: its own way asks about every pair, in gigabytes.
    """
    from torch.nn.attention.flex_attention import flex_attention

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < size)

    bound = mh.masks.bind(mh.Causal() & mh.Window(size), 1, length, length)
    blocks = block_mask(bound, 1, 1, seen)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=blocks)


def local_attention(length: int, size: int) -> Attend:
    """local-attention's causal window, which counts the query's own key beyond the size."""
    layer = _load("local_attention").LocalAttention(
        size, causal=True, look_backward=1, exact_windowsize=True, use_rotary_pos_emb=False
    )
    return lambda q, k, v: layer(q, k, v)


class _Given(nn.Module):
    """Stands where a projection stood."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        assert self.heads is not None
        # (batch, heads, length, head_dim) -> (length, batch, d_model), for them to write into
        return self.heads.permute(2, 0, 1, 3).flatten(2).clone()


def longformer(length: int, size: int) -> Attend:
    """Hugging Face's Longformer without its projections: as many keys, half of them after."""
    theirs = _load("transformers.models.longformer.modeling_longformer")
    config = _load("transformers").LongformerConfig(
        hidden_size=512, num_attention_heads=8, attention_window=[size]
    )
    layer = theirs.LongformerSelfAttention(config, 0)
    layer.query, layer.key, layer.value = _Given(), _Given(), _Given()
    layer.dropout = 0.0

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layer.query.heads, layer.key.heads, layer.value.heads = q, k, v
        nowhere = torch.zeros(q.shape[0], q.shape[2])
        output = layer(
            torch.empty(q.shape[0], q.shape[2], layer.embed_dim),
            attention_mask=nowhere,
            is_index_masked=nowhere.bool(),
            is_index_global_attn=nowhere.bool(),
            is_global_attn=False,
        )[0]
        return output.unflatten(2, (q.shape[1], -1)).transpose(1, 2)

    return attend


def performer_causal(length: int, size: int) -> Attend:
    """performer-pytorch's causal attention on the CPU as it comes, of 266 features a head of 64."""
    with contextlib.redirect_stdout(io.StringIO()):
        layer = _load("performer_pytorch.performer_pytorch").FastAttention(64, causal=True)
    return lambda q, k, v: layer(q, k, v)


def performer_sums(length: int, size: int) -> Attend:
    """The sums of that, of the features of linear attention."""
    sums = _load("performer_pytorch.performer_pytorch").causal_linear_attention_noncuda
    return lambda q, k, v: sums(F.elu(q) + 1, F.elu(k) + 1, v)


def performer(length: int, size: int) -> Attend:
    """performer-pytorch's random features, without a mask."""
    layer = _load("performer_pytorch.performer_pytorch").FastAttention(64, nb_features=size)
    return lambda q, k, v: layer(q, k, v)


def reformer(length: int, size: int) -> Attend:
    """reformer-pytorch's hashing, of four rounds; its buckets have `size` tokens."""
    layer = _load("reformer_pytorch").LSHAttention(bucket_size=size, n_hashes=4).eval()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = q.shape[1]
        output = layer(q.flatten(0, 1), v.flatten(0, 1))[0]
        return output.unflatten(0, (-1, heads))

    return attend
