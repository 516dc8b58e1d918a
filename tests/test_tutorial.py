"""What the tutorials promise holds, and what their own code gets wrong is right here."""

import math

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads import tutorial
from manyheads.errors import DTypeError, MaskError, OptionError, ShapeError

LOOK_AHEAD = torch.tril(torch.ones(5, 5))


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention as a tutorial writes it; right where every query sees somebody."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ v, weights


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def layer_of(d_model: int = 12, n_head: int = 3) -> tutorial.MultiHeadAttention:
    return tutorial.MultiHeadAttention(d_model, n_head, dropout=0.0).double()


# What they promise


def test_the_scaled_dot_product_agrees_with_the_formula_and_its_gradients() -> None:
    Q, K, V = drawn(2, 3, 5, 8), drawn(2, 3, 5, 8), drawn(2, 3, 5, 6)
    output, weights = tutorial.ScaledDotProductAttention(8, dropout=0.0)(Q, K, V, LOOK_AHEAD)
    expected, expected_weights = by_hand(Q, K, V, LOOK_AHEAD)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-10)
    ours = torch.autograd.grad(output.square().sum(), (Q, K, V))
    theirs = torch.autograd.grad(expected.square().sum(), (Q, K, V))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_two_keys_worked_out_by_hand() -> None:
    # Scores 0 and sqrt(4) * ln 3 / sqrt(4) = ln 3, so the weights are 1/4 and 3/4.
    Q = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    K = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [2 * math.log(3), 0.0, 0.0, 0.0]]])
    V = torch.tensor([[[0.0], [8.0]]])
    output, weights = tutorial.ScaledDotProductAttention(4).eval()(Q, K, V)
    torch.testing.assert_close(weights, torch.tensor([[[0.25, 0.75]]]))
    torch.testing.assert_close(output, torch.tensor([[[6.0]]]))


def test_both_tutorials_call_the_constructor_their_way() -> None:
    ways = [
        tutorial.MultiHeadAttention(d_model=12, n_head=3, dropout=0.1),
        tutorial.MultiHeadAttention(d_model=12, num_heads=3, dropout=0.1),
        tutorial.MultiHeadAttention(12, 3, 0.1),
    ]
    for layer in ways:
        assert layer.attention.num_heads == 3
        assert layer.attention.dropout == 0.1


def test_shapes_are_as_promised_and_gradients_reach_every_weight() -> None:
    layer = tutorial.MultiHeadAttention(d_model=64, n_head=4, dropout=0.1)
    x = torch.randn(2, 10, 64, requires_grad=True)
    output, weights = layer(x, x, x, torch.tril(torch.ones(2, 10, 10)))
    output.square().sum().backward()
    assert output.shape == (2, 10, 64)
    assert weights.shape == (2, 4, 10, 10)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 4, 10))
    assert x.grad is not None and x.grad.abs().sum() > 0
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert name.endswith("k_proj.bias") or parameter.grad.abs().sum() > 0, name


def test_the_encoder_layer_is_that_of_torch() -> None:
    theirs = torch.nn.TransformerEncoderLayer(
        12, 3, 24, dropout=0.0, batch_first=True, dtype=torch.float64
    )
    layer = tutorial.TransformerEncoderLayer(12, 3, 24, dropout=0.0).double()
    inner = layer.layer
    inner.self_attention.load_state_dict(theirs.self_attn.state_dict())
    inner.feed_forward.up.load_state_dict(theirs.linear1.state_dict())
    inner.feed_forward.down.load_state_dict(theirs.linear2.state_dict())
    inner.attention_residual.norm.load_state_dict(theirs.norm1.state_dict())
    inner.feed_forward_residual.norm.load_state_dict(theirs.norm2.state_dict())
    x = drawn(2, 5, 12)
    output = theirs(x, src_mask=LOOK_AHEAD == 0)
    torch.testing.assert_close(layer(x, LOOK_AHEAD), output, rtol=0, atol=1e-10)
    with_weights, weights = layer.with_weights(x, LOOK_AHEAD)
    torch.testing.assert_close(with_weights, output, rtol=0, atol=1e-10)
    assert weights.shape == (2, 3, 5, 5)


def test_positions_are_the_waves_of_the_paper() -> None:
    encoded = tutorial.PositionalEncoding(4, dropout=0.0)(torch.zeros(1, 3, 4))[0]
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(3)]
    torch.testing.assert_close(encoded, torch.tensor(expected))


# What their own code gets wrong


def test_key_and_value_are_used() -> None:
    layer, x, memory, value = layer_of(), drawn(2, 4, 12), drawn(2, 5, 12), drawn(2, 5, 12)
    output, weights = layer(x, memory, value)
    assert weights.shape == (2, 3, 4, 5)
    for gradient in torch.autograd.grad(output.square().sum(), (x, memory, value)):
        assert gradient.abs().sum() > 0
    other = layer(x, memory, torch.zeros_like(value))
    torch.testing.assert_close(weights, other[1])  # the weights come of the keys alone
    assert not torch.allclose(output, other[0])


def test_the_same_tensor_and_an_equal_one_give_the_same() -> None:
    layer, x = layer_of(), drawn(2, 5, 12)
    torch.testing.assert_close(
        layer(x, x, x, LOOK_AHEAD), layer(x, x.clone(), x.clone(), LOOK_AHEAD)
    )


@pytest.mark.parametrize(
    "layer",
    [
        tutorial.ScaledDotProductAttention(12, dropout=0.5),
        tutorial.MultiHeadAttention(12, 3, dropout=0.5),
    ],
    ids=["scaled dot product", "multi-head"],
)
def test_weights_are_those_before_dropout(layer: torch.nn.Module) -> None:
    x = torch.randn(2, 6, 12)
    dropped, weights = layer(x, x, x)
    whole, same_weights = layer.eval()(x, x, x)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    torch.testing.assert_close(weights, same_weights)
    assert not torch.allclose(dropped, whole), "dropout acts on what is mixed"


def test_dropout_keeps_the_mean() -> None:
    Q = K = torch.zeros(1, 4000, 1)
    output, _ = tutorial.ScaledDotProductAttention(1, dropout=0.25)(Q, K, torch.ones(1, 4000, 1))
    assert output.mean().item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_query_that_sees_nobody_gets_zero_and_finite_gradients(dtype: torch.dtype) -> None:
    mask = torch.ones(1, 3, 4)
    mask[:, 1] = 0
    Q, K, V = (torch.randn(1, n, 8, dtype=dtype, requires_grad=True) for n in (3, 4, 4))
    output, weights = tutorial.ScaledDotProductAttention(8, dropout=0.0)(Q, K, V, mask)
    output.float().square().sum().backward()
    assert output[:, 1].eq(0).all()
    assert weights[:, 1].eq(0).all()
    assert Q.grad is not None and K.grad is not None and V.grad is not None
    assert Q.grad[:, 1].eq(0).all()
    for gradient in (Q.grad, K.grad, V.grad):
        assert gradient.isfinite().all() and gradient.abs().sum() > 0


def test_a_layer_whose_mask_hides_everything_gives_the_last_bias() -> None:
    layer, x = layer_of(), drawn(2, 5, 12)
    output, weights = layer(x, x, x, torch.zeros(2, 5, 5))
    output.sum().backward()
    torch.testing.assert_close(output, layer.attention.out_proj.bias.expand(2, 5, 12))
    assert weights.eq(0).all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_hidden_keys_get_no_weight_in_half_precision() -> None:
    # -1e9 overflows fp16, and its lowest number is near enough for large scores to matter.
    layer = tutorial.MultiHeadAttention(16, 2, dropout=0.0).half()
    x = (100 * torch.randn(1, 5, 16)).half()
    _, weights = layer(x, x, x, LOOK_AHEAD)
    assert weights.isfinite().all()
    assert weights.triu(1).eq(0).all()


KEEP = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
MASKS = {
    "2-D": LOOK_AHEAD,
    "3-D": torch.stack([LOOK_AHEAD, torch.ones(5, 5)]),
    "4-D": torch.stack([LOOK_AHEAD, torch.ones(5, 5)])[:, None],
    "4-D, a mask for each head": torch.stack([LOOK_AHEAD, torch.ones(5, 5), torch.eye(5)])[None],
    "padding, 3-D": KEEP[:, None],
    "padding, 4-D": KEEP[:, None, None],
}


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_every_rank_and_type_hide_where_they_are_zero(
    name: str, kind: torch.dtype
) -> None:
    mask = MASKS[name]
    full = mask[:, None] if mask.ndim == 3 else mask
    Q, K, V = drawn(2, 3, 5, 4), drawn(2, 3, 5, 4), drawn(2, 3, 5, 4)
    output, weights = tutorial.ScaledDotProductAttention(4, dropout=0.0)(Q, K, V, mask.to(kind))
    expected, expected_weights = by_hand(Q, K, V, full)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-10)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)


def test_a_mask_of_each_sequence_never_lands_on_the_heads() -> None:
    # With as many sequences as heads, plain broadcasting would take the batch for the heads.
    layer, x = layer_of(), drawn(3, 5, 12)
    mask = torch.stack([LOOK_AHEAD, torch.ones(5, 5), torch.eye(5)])
    _, weights = layer(x, x, x, mask)
    for sequence in range(3):
        assert weights[sequence].gt(0).equal(mask[sequence].bool().expand(3, 5, 5))


def test_a_mask_is_not_copied_for_each_head() -> None:
    assert tutorial.from_zero_one_mask(torch.ones(2, 5, 5), q_len=5, kv_len=5).tensor.numel() == 50


def test_padding_may_hold_anything() -> None:
    layer, x = layer_of(), drawn(2, 5, 12)
    spoiled = x.detach().clone()
    spoiled[KEEP == 0] = math.nan
    clean, _ = layer(x, x, x, KEEP[:, None])
    output, weights = layer(x, spoiled, spoiled, KEEP[:, None])
    assert weights.isfinite().all()
    torch.testing.assert_close(output[KEEP == 1], clean[KEEP == 1])


def test_our_own_masks_do_as_well() -> None:
    layer, x = layer_of(), drawn(2, 5, 12)
    torch.testing.assert_close(layer(x, x, x, mh.Causal()), layer(x, x, x, LOOK_AHEAD))


@pytest.mark.parametrize(("d_model", "max_len", "length"), [(5, 5000, 7), (1, 3, 3), (6, 4, 9)])
def test_odd_widths_and_lengths_beyond_the_maximum_work(
    d_model: int, max_len: int, length: int
) -> None:
    encoding = tutorial.PositionalEncoding(d_model, max_len, dropout=0.0)
    encoded = encoding(torch.zeros(2, length, d_model))
    assert encoded.shape == (2, length, d_model)
    assert encoded.isfinite().all()
    torch.testing.assert_close(encoded[0, :, 0], torch.arange(length).sin())
    assert len({tuple(row) for row in encoded[0].tolist()}) == length


def test_the_scale_makes_the_variance_of_scores_one() -> None:
    Q, K = torch.randn(1, 200, 256), torch.randn(1, 200, 256)
    scores = mh.attention_scores(Q[:, None], K[:, None], K[:, None])
    assert scores.var().item() == pytest.approx(1.0, abs=0.05)


# What cannot be, said at once

WRONG = {
    "heads that do not divide": (
        lambda: tutorial.MultiHeadAttention(10, 4),
        OptionError,
        r"num_heads must divide d_model=10; got num_heads=4. These do: 1, 2, 5, 10",
    ),
    "heads given twice": (
        lambda: tutorial.MultiHeadAttention(12, 3, num_heads=3),
        OptionError,
        r"must have n_head or num_heads; got n_head=3, num_heads=3",
    ),
    "no heads": (
        lambda: tutorial.MultiHeadAttention(12),
        OptionError,
        r"must have n_head or num_heads; got n_head=None",
    ),
    "dropout of one": (
        lambda: tutorial.PositionalEncoding(4, dropout=1.0),
        OptionError,
        r"dropout must be a number in \[0, 1\)",
    ),
    "d_model in the place of d_k": (
        lambda: tutorial.ScaledDotProductAttention(12)(*[torch.ones(2, 3, 5, 4)] * 3),
        ShapeError,
        r"Q must have the width d_k=12; got 4. Build it with the width of one head",
    ),
    "ranks that differ": (
        lambda: tutorial.ScaledDotProductAttention(4)(
            torch.ones(2, 5, 4), torch.ones(5, 4), torch.ones(5, 4)
        ),
        ShapeError,
        r"K must be \(batch, length, width\)",
    ),
    "a stream without a batch": (
        lambda: tutorial.MultiHeadAttention(12, 3)(*[torch.ones(5, 12)] * 3),
        ShapeError,
        r"Q must be \(batch, length, 12\); got shape \(5, 12\).*Q\[None\]",
    ),
    "a key of another width": (
        lambda: tutorial.MultiHeadAttention(12, 3)(
            torch.ones(1, 5, 12), torch.ones(1, 5, 8), torch.ones(1, 5, 12)
        ),
        ShapeError,
        r"K must be \(batch, length, 12\); got shape \(1, 5, 8\)",
    ),
    "an encoder layer's stream of another width": (
        lambda: tutorial.TransformerEncoderLayer(12, 3)(torch.ones(1, 5, 8), LOOK_AHEAD),
        ShapeError,
        r"x must be \(batch, length, 12\); got shape \(1, 5, 8\)",
    ),
    "streams of two dtypes": (
        lambda: layer_of()(torch.ones(1, 5, 12), *[torch.ones(1, 5, 12).double()] * 2),
        DTypeError,
        r"Q must",
    ),
    "no tensor": (
        lambda: tutorial.MultiHeadAttention(12, 3)(torch.ones(1, 5, 12), [[1.0]], [[1.0]]),
        DTypeError,
        r"K must be a torch.Tensor; got K=list",
    ),
    "padding of two dimensions": (
        lambda: tutorial.from_zero_one_mask(torch.ones(2, 7), q_len=5, kv_len=7),
        ShapeError,
        r"got shape \(2, 7\). For padding \(batch, kv_len\) write mask\[:, None\]",
    ),
    "a mask that is added": (
        lambda: tutorial.from_zero_one_mask(torch.full((5, 5), -1e9), q_len=5, kv_len=5),
        MaskError,
        r"mask must hold only 0 \(hidden\) and 1 \(may see\)",
    ),
    "a complex mask": (
        lambda: tutorial.from_zero_one_mask(torch.ones(5, 5) + 0j, q_len=5, kv_len=5),
        DTypeError,
        r"mask must be bool, integers or floats",
    ),
    "a mask that is no tensor": (
        lambda: tutorial.from_zero_one_mask([[1]], q_len=1, kv_len=1),
        DTypeError,
        r"mask must be a torch.Tensor; got mask=list",
    ),
    "a mask of another batch": (
        lambda: layer_of()(*[torch.ones(2, 5, 12).double()] * 3, torch.ones(3, 5, 5)),
        MaskError,
        r"batch must be 1 or 2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_with_its_cure(name: str) -> None:
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        call()
