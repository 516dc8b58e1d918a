"""Left padding: a short sequence in a batch is the same as the sequence alone."""

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import Exact, every_backend, every_dtype, near
from tests.cases.layers import asking_layer, chunks
from torch import Tensor

import manyheads as mh

POSITIONS = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
"""Three tokens behind two of padding, and five tokens."""


def stream(dtype: torch.dtype, padding: float) -> Tensor:
    x = torch.full((2, 5, 4), padding, dtype=dtype)
    x[0, 2:] = torch.from_numpy(det((3, 4), 26))
    x[1] = torch.from_numpy(det((5, 4), 96))
    return x.requires_grad_()


def encoded(x: Tensor) -> Tensor:
    """Sinusoidal positions added and one head made of it: all projections are the identity."""
    return mh.Sinusoidal(4)(x, POSITIONS)[:, None]


@every_backend
@every_dtype
@pytest.mark.parametrize("padding", [0.0, 1.5, torch.nan, torch.inf])
def test_a_short_sequence_counts_its_own_tokens(
    padding: float, dtype: torch.dtype, backend: str
) -> None:
    """PAD-01, absolute positions: padding has position -1, whatever it holds."""
    x = stream(dtype, padding)
    h = encoded(x)
    output = mh.attention(h, h, h, mh.Causal(), q_pos=POSITIONS, kv_pos=POSITIONS, backend=backend)[
        :, 0
    ]
    near(output[0, -1], [0.61936957562952, 1.4119455059855, 0.37231856622336, 1.8155122396899])
    assert output[0, :2].eq(0).all()
    output.sum().backward()
    assert x.grad[0, :2].eq(0).all()
    assert x.grad.isfinite().all()


@every_backend
def test_a_row_of_the_batch_equals_the_row_alone_with_its_gradients(backend: str) -> None:
    x = stream(torch.float64, torch.nan)
    h = encoded(x)
    output = mh.attention(h, h, h, mh.Causal(), q_pos=POSITIONS, kv_pos=POSITIONS, backend=backend)
    output.backward(torch.from_numpy(det((2, 1, 5, 4), 97)))
    for row, first in ((0, 2), (1, 0)):
        length = 5 - first
        alone = x[row : row + 1, first:].detach().requires_grad_()
        h = mh.Sinusoidal(4)(alone)[:, None]
        expected = mh.attention(h, h, h, mh.Causal(), backend=backend)
        expected.backward(torch.from_numpy(det((2, 1, 5, 4), 97)[row : row + 1, :, first:]))
        near(output[row, :, first:], expected[0].detach().numpy())
        near(x.grad[row, first:], alone.grad[0].numpy())
        assert alone.shape[1] == length


def test_counting_columns_instead_gives_other_numbers() -> None:
    """The signature of one shared position vector: row 0 reads encodings 2, 3 and 4."""
    x = stream(torch.float64, 0.0)
    h = mh.Sinusoidal(4)(x)[:, None]
    output = mh.attention(h, h, h, mh.Causal(), q_pos=POSITIONS, kv_pos=POSITIONS)
    near(output[0, 0, -1], [-0.19411320374748, 0.4278594192476, 0.55711460895736, 1.7793734417858])


# Rotary: three prompt tokens behind two of padding, then one decoded token.
RIGHT = [2.1403480858302, -0.36303556620535, -2.1890386029419, -1.703125]


def rotary_logits(prompt: list[int], following: int) -> Tensor:
    """Scores of the decoded token against the prompt's three keys and its own."""
    rotary = mh.Rotary(4)
    k, q = (torch.from_numpy(det((1, 1, n, 4), number)) for n, number in ((4, 27), (1, 28)))
    padding = torch.zeros(1, 1, 2, 4, dtype=k.dtype)
    prefill = rotary(torch.cat((padding, k[:, :, :3]), dim=2), torch.tensor([-1, -1, *prompt]))
    keys = torch.cat((prefill, rotary(k[:, :, 3:], following)), dim=2)
    return mh.attention_scores(rotary(q, following), keys, keys, stage="raw")[0, 0, 0, 2:]


def test_prefill_and_decode_count_the_same_tokens() -> None:
    near(rotary_logits([0, 1, 2], 3), RIGHT)


@pytest.mark.parametrize("shift", [2, 1000])
def test_a_shift_of_all_positions_changes_no_rotary_score(shift: int) -> None:
    near(rotary_logits([shift, shift + 1, shift + 2], shift + 3), RIGHT)


def test_counting_tokens_first_and_columns_later_gives_other_scores() -> None:
    near(
        rotary_logits([0, 1, 2], 5),
        [2.7962090886049, -0.0045249428335765, -1.231554187659, -1.703125],
    )


@every_backend
@every_dtype
@pytest.mark.parametrize("causal", [True, False])
def test_positions_below_zero_mask_as_padding_does_and_silence_the_queries(
    causal: bool, dtype: torch.dtype, backend: str
) -> None:
    real = (POSITIONS >= 0).numpy()
    allow = real[:, None, :, None] & real[:, None, None]
    if causal:
        allow = allow & np.tri(5, dtype=bool)
    shape = (2, 2, 5, 4)
    exact = Exact(*(det(shape, number) for number in (26, 27, 28, 97)), allow=allow)
    mask = mh.Causal() if causal else None
    exact.agrees(dtype, backend, mask, q_pos=POSITIONS, kv_pos=POSITIONS)


# Layers with a cache: a prompt with padding, then tokens that follow each row's own last one.


def prompts(padding: float) -> tuple[Tensor, Tensor]:
    """Queries and keys side by side: five columns of a prompt, and one token more."""
    k, q = (torch.from_numpy(det((1, n, 4), number)) for n, number in ((4, 27), (1, 28)))
    prompt = torch.full((2, 5, 8), padding, dtype=torch.float64)
    prompt[0, 2:] = torch.cat((k[0, :3], k[0, :3]), dim=-1)
    prompt[1] = torch.from_numpy(det((5, 8), 95))
    following = torch.from_numpy(det((2, 1, 8), 94))
    following[0] = torch.cat((q[0], k[0, 3:]), dim=-1)
    return prompt, following


def softmaxed(scores: list[float]) -> list[float]:
    return torch.tensor(scores, dtype=torch.float64).softmax(-1).tolist()


@pytest.mark.parametrize("padding", [0.0, torch.nan])
@pytest.mark.parametrize(
    "said",
    [
        {"mask": mh.Causal(), "positions": POSITIONS},
        {"mask": mh.Causal() & mh.Padding(POSITIONS >= 0)},
    ],
    ids=["by positions", "by a mask"],
)
def test_decoding_goes_on_from_each_row_s_last_token(said: dict, padding: float) -> None:
    """PAD-01 with rotary: prefill and decode count alike, so that the short row is itself."""
    layer, cache = asking_layer(4, rotary=mh.Rotary(4)), mh.GrowingCache()
    prompt, following = prompts(padding)
    layer(prompt, **said, cache=cache)
    _, weights = layer.with_weights(following, mask=mh.Causal(), cache=cache)
    near(weights[0, 0, 0], [0, 0, *softmaxed(RIGHT)])
    if "positions" in said:
        assert cache.positions[:, -1].tolist() == [3, 5]

    alone = mh.GrowingCache()
    layer(prompt[1:], mask=mh.Causal(), cache=alone)
    _, expected = layer.with_weights(following[1:], mask=mh.Causal(), cache=alone)
    near(weights[1], expected[0].detach().numpy())


@pytest.mark.parametrize("padding", [0.0, torch.nan])
@pytest.mark.parametrize("steps", [[1], [2], [1, 1, 2]], ids=str)
def test_ragged_prompts_decode_as_each_alone(steps: list[int], padding: float) -> None:
    """A neighbour of PAD-01: padding on the right, so that new tokens follow a gap."""
    layer = mh.EncoderLayer(8, 2, 16, rotary=mh.Rotary(4), dropout=0.0, dtype=torch.float64)
    lengths = torch.tensor([3, 5, 0])
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    x = x.masked_fill(torch.arange(5)[:, None] >= lengths[:, None, None], padding)
    following = torch.randn(3, sum(steps), 8, dtype=torch.float64)
    cache = mh.GrowingCache()
    layer(x, mask=mh.Causal() & mh.Padding(lengths=lengths), cache=cache)
    rows = [layer(following[:, chunk], mask=mh.Causal(), cache=cache) for chunk in chunks(steps)]
    for b, length in enumerate(lengths.tolist()):
        text = torch.cat((x[b : b + 1, :length], following[b : b + 1]), dim=1)
        expected = layer(text, mask=mh.Causal())[0, length:]
        near(torch.cat(rows, dim=1)[b], expected.detach().numpy())
