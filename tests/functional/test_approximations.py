"""What every approximation owes its caller, whatever it computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import DTypeError, ManyheadsError, MaskError, ShapeError
from manyheads.functional import linear_attention_with_state, performer_attention_with_state

D = 8
FEATURES = mh.RandomFeatures(D, 24, generator=torch.Generator().manual_seed(0))
SLOTS = torch.randn(2, 2, 6, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

Function = Callable[..., Tensor]


def linear(q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
    return mh.linear_attention(q, k, v, mask, chunk=4)


def performer(q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
    return mh.performer_attention(q, k, v, mask, features=FEATURES, chunk=4)


def lsh(q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return mh.lsh_attention(q, q, v, mask, bucket_size=4, rounds=2, generator=generator)


def nystrom(q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
    return mh.nystrom_attention(q, k, v, mask, landmarks=4)


def linformer(q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
    keys, values = (x[: k.shape[1]] for x in SLOTS)
    return mh.linformer_attention(q, k, v, mask, key_projection=keys, value_projection=values)


ALL = [linear, performer, lsh, nystrom, linformer]
CAUSAL = [linear, performer, lsh]
CROSS = [linear, performer, nystrom, linformer]
every = pytest.mark.parametrize("function", ALL)


def random(
    q_len: int, kv_len: int, *, heads: int = 2, kv_heads: int = 2, dtype: torch.dtype | None = None
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(q_len + kv_len)
    sizes = [(heads, q_len, D), (kv_heads, kv_len, D), (kv_heads, kv_len, 3)]
    made = [torch.randn(2, *size, generator=generator, dtype=torch.float64) for size in sizes]
    return [x.to(dtype or torch.float64).requires_grad_() for x in made]


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    upstream = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    found = torch.autograd.grad(output, inputs, upstream, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@every
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 11, 17, 33])
def test_any_length_works_and_rows_that_see_someone_average_the_values(
    function: Function, length: int
) -> None:
    q, k, v = random(length, length)
    output = function(q, k, v)
    assert output.shape == v.shape
    assert all(g.isfinite().all() for g in gradients(output, [q, k, v]))
    if function is not linformer:  # the slots of which mix with any sign
        atol = 0.05 if function is nystrom else 1e-9  # whose inverse is iterated six times only
        torch.testing.assert_close(
            function(q, k, torch.ones_like(v)), torch.ones_like(v), atol=atol, rtol=0
        )


@pytest.mark.parametrize("function", CROSS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (1, 9), (9, 5), (5, 23), (13, 40)])
def test_cross_attention_works_at_any_pair_of_lengths(
    function: Function, q_len: int, kv_len: int
) -> None:
    q, k, v = random(q_len, kv_len)
    output = function(q, k, v)
    assert output.shape == (2, 2, q_len, 3)
    if kv_len == 0:
        assert not output.any()


@every
@pytest.mark.parametrize("length", [1, 7, 33])
def test_gradients_are_those_of_finite_differences(function: Function, length: int) -> None:
    keep = torch.arange(length) < torch.tensor([[length], [length - 1]])
    q, k, v = random(length, length)
    call = lambda q, k, v: function(q, k, v, mh.Padding(keep))  # noqa: E731
    assert torch.autograd.gradcheck(call, (q, k, v), fast_mode=True)


@pytest.mark.parametrize("function", CAUSAL)
def test_gradients_of_causal_calls_are_those_of_finite_differences(function: Function) -> None:
    q, k, v = random(13, 13)
    call = lambda q, k, v: function(q, k, v, mh.Causal())  # noqa: E731
    assert torch.autograd.gradcheck(call, (q, k, v), fast_mode=True)


@pytest.mark.parametrize("function", CAUSAL)
def test_the_future_never_reaches_an_output(function: Function) -> None:
    q, k, v = random(13, 13)
    before = function(q, k, v, mh.Causal())
    with torch.no_grad():
        for x in (q, k, v):
            x[:, :, 9:] *= -3
    after = function(q, k, v, mh.Causal())
    if function is not lsh:  # where a later hash moves the chunks, so that gradients must tell
        torch.testing.assert_close(after[:, :, :9], before[:, :, :9])
    for gradient in torch.autograd.grad(function(q, k, v, mh.Causal())[:, :, :6].sum(), (q, v)):
        assert not gradient[:, :, 6:].any()


@pytest.mark.parametrize("function", [linear, performer, linformer])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_nothing_of_what_the_real_tokens_give(
    function: Function, causal: bool
) -> None:
    """The same outputs and gradients as without the padding, which is last here."""
    if causal and function not in CAUSAL:
        return
    q, k, v = random(9, 9)
    mask = mh.Padding(lengths=torch.tensor([6, 6]))
    whole = function(q, k, v, mh.Causal() & mask if causal else mask)[:, :, :6]
    short = function(*(x[:, :, :6] for x in (q, k, v)), mh.Causal() if causal else None)
    torch.testing.assert_close(whole, short)
    same(gradients(whole, [q, k, v]), gradients(short, [q, k, v]))


@pytest.mark.parametrize("function", [linear, performer, nystrom])
def test_padding_may_lie_anywhere(function: Function) -> None:
    q, k, v = random(11, 17)
    keep = torch.rand(17, generator=torch.Generator().manual_seed(2)) > 0.4
    whole = function(q, k, v, mh.Padding(keep.expand(2, -1)))
    short = function(q, k[:, :, keep], v[:, :, keep])
    torch.testing.assert_close(whole, short)
    same(gradients(whole, [q, k, v]), gradients(short, [q, k, v]))


@every
@pytest.mark.parametrize("causal", [False, True])
def test_padding_may_hold_anything(function: Function, causal: bool) -> None:
    if causal and function not in CAUSAL:
        return
    q, k, v = random(9, 9)
    padding = mh.Padding(lengths=torch.tensor([9, 5]))
    mask = mh.Causal() & padding if causal else padding
    clean = function(q, k, v, mask)
    expected = gradients(clean, [q, k, v])
    with torch.no_grad():
        k[1, :, 5:], v[1, :, 5:] = torch.nan, torch.inf
        if function is lsh:  # where q is k
            q[1, :, 5:] = torch.nan
    found = function(q, k, v, mask)
    torch.testing.assert_close(found, clean)
    same(gradients(found, [q, k, v]), expected)


@every
def test_a_sequence_of_padding_alone_gives_0_with_gradient_0(function: Function) -> None:
    q, k, v = random(9, 9)
    output = function(q, k, v, mh.Padding(lengths=torch.tensor([0, 9])))
    assert not output[0].any()
    assert output[1].any()
    for gradient in gradients(output, [q, k, v]):
        assert not gradient[0].any()
        assert gradient.isfinite().all()


@every
def test_a_batch_neighbour_changes_nothing(function: Function) -> None:
    q, k, v = random(17, 17)
    both = function(q, k, v)
    torch.testing.assert_close(both[:1], function(q[:1], k[:1], v[:1]))


@every
def test_grouped_heads_read_the_keys_of_their_group(function: Function) -> None:
    q, k, v = random(17, 17, heads=4, kv_heads=2)
    if function is linformer:
        wide = [x.repeat_interleave(2, dim=1) for x in (k, v)]
        halves = [function(q[:, i::2], k, v) for i in (0, 1)]
        expected = torch.stack(halves, dim=2).flatten(1, 2)
    else:
        wide = [x.repeat_interleave(2, dim=1) for x in (k, v)]
        expected = function(q, *wide)
    torch.testing.assert_close(function(q, k, v), expected)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_rounded_once(function: Function, dtype: torch.dtype) -> None:
    q, k, v = random(33, 33, dtype=dtype)
    output = function(q, k, v)
    assert output.dtype == dtype
    if function is lsh:  # which draws its hashes in the precision that it works in
        return
    exact = function(q.double(), k.double(), v.double())
    share = max(torch.finfo(dtype).eps, 1e-5)
    torch.testing.assert_close(output.double(), exact, rtol=share, atol=share)
    for gradient, x in zip(gradients(output, [q, k, v]), (q, k, v), strict=True):
        assert gradient.dtype == x.dtype
        assert gradient.isfinite().all()


@every
def test_autocast_casts_the_inputs_and_not_the_sums(function: Function) -> None:
    q, k, v = random(33, 33, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = function(q, k, v)
    expected = function(*(x.bfloat16() for x in (q, k, v)))
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize(
    "with_state", [linear_attention_with_state, performer_attention_with_state]
)
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_a_state_carries_a_causal_call_over_any_split(with_state: Function, kv_heads: int) -> None:
    options = {"features": FEATURES} if with_state is performer_attention_with_state else {}
    q, k, v = random(12, 12, heads=4, kv_heads=kv_heads)
    whole, end = with_state(q, k, v, mh.Causal(), chunk=5, **options)
    for sizes in [(1,) * 12, (7, 5), (4, 0, 8)]:
        state, parts = None, []
        for part in zip(*(x.split(sizes, dim=2) for x in (q, k, v)), strict=True):
            output, state = with_state(*part, mh.Causal(), state=state, chunk=5, **options)
            parts.append(output)
        torch.testing.assert_close(torch.cat(parts, dim=2), whole)
        found, expected = (s.sums * s.peak.exp() for s in (state, end))
        torch.testing.assert_close(found, expected)


@every
@pytest.mark.parametrize(
    "mask",
    [
        mh.Window(4),
        mh.Causal() & mh.Window(100),
        ~mh.Causal(),
        mh.Documents(torch.zeros(2, 9, dtype=torch.long)),
        torch.ones(9, 9, dtype=torch.bool),
    ],
    ids=lambda mask: type(mask).__name__,
)
def test_any_other_mask_is_refused_with_what_can_be_taken(function: Function, mask: Any) -> None:
    taken = r"Causal\(\), Padding" if function in CAUSAL else r"None or Padding\(\.\.\.\)"
    with pytest.raises(MaskError, match=rf"mask must be {taken}.*attention; got .*takes any mask"):
        function(*random(9, 9), mask)


@pytest.mark.parametrize("function", [nystrom, linformer])
def test_causality_is_refused_where_it_cannot_be(function: Function) -> None:
    with pytest.raises(MaskError, match=r"mask must be None .*the future too; linear_attention"):
        function(*random(9, 9), mh.Causal())


MISTAKES: list[tuple[Callable[[], object], type[ManyheadsError], str]] = []


def mistake(kind: type[ManyheadsError], message: str) -> Callable[[Any], None]:
    return lambda call: MISTAKES.append((call, kind, message))


Q, K, V = random(9, 9)
with_slots = mh.linformer_attention
mistake(ShapeError, r"k must be q itself .* got another tensor\. .*q, q, v")(
    lambda: mh.lsh_attention(Q, K, V)
)
mistake(ManyheadsError, r"itself must be 'last resort' or 'seen'; got itself='no'")(
    lambda: mh.lsh_attention(Q, Q, V, itself="no")  # type: ignore[arg-type]
)
mistake(ManyheadsError, r"bucket_size must be an int of at least 1; got bucket_size=0")(
    lambda: mh.lsh_attention(Q, Q, V, bucket_size=0)
)
mistake(ManyheadsError, r"rounds must be an int of at least 1; got rounds=0")(
    lambda: mh.lsh_attention(Q, Q, V, rounds=0)
)
mistake(ShapeError, r"num_heads must be a multiple|same number of heads")(
    lambda: mh.lsh_attention(Q, Q, torch.cat((V, V[:, :1]), dim=1))
)
mistake(ManyheadsError, r"landmarks must be an int of at least 1; got landmarks=0")(
    lambda: mh.nystrom_attention(Q, K, V, landmarks=0)
)
mistake(ManyheadsError, r"iterations must be an int of at least 1; got iterations=0")(
    lambda: mh.nystrom_attention(Q, K, V, iterations=0)
)
mistake(ShapeError, r"key_projection must be .*at least kv_len=9; got shape \(6, 8\)\. Make it")(
    lambda: with_slots(Q, K, V, key_projection=SLOTS[0, 0, :, :8])
)
mistake(ShapeError, r"value_projection must be .*num_kv_heads=2.* got shape \(3, 6, 64\)")(
    lambda: with_slots(
        Q, K, V, key_projection=SLOTS[0], value_projection=SLOTS[0, :1].expand(3, -1, -1)
    )
)
mistake(ShapeError, r"must have as many slots; got 6 and 5\. A slot")(
    lambda: with_slots(Q, K, V, key_projection=SLOTS[0], value_projection=SLOTS[0, :, :5])
)
mistake(DTypeError, r"key_projection must be a floating-point .* got key_projection=list")(
    lambda: with_slots(Q, K, V, key_projection=[1.0])  # type: ignore[arg-type]
)
mistake(ManyheadsError, r"key_projection must be on the device .* got key_projection=meta")(
    lambda: with_slots(Q, K, V, key_projection=SLOTS[0].to("meta"))
)
mistake(ShapeError, r"features must be a RandomFeatures .* got features=64\. Write RandomF")(
    lambda: mh.performer_attention(Q, K, V, features=64)  # type: ignore[arg-type]
)
mistake(ShapeError, r"features must have the head_dim of q, 8; got head_dim=4\. Write")(
    lambda: mh.performer_attention(Q, K, V, features=mh.RandomFeatures(4))
)
mistake(ManyheadsError, r"scale must be 0 or more for performer.* got scale=-1\.0")(
    lambda: mh.performer_attention(Q, K, V, features=FEATURES, scale=-1.0)
)
mistake(ManyheadsError, r"num_features must be an int of at least 1; got num_features=0")(
    lambda: mh.RandomFeatures(4, 0)
)
mistake(ManyheadsError, r"redraw_every must be an int of at least 1; got redraw_every=0")(
    lambda: mh.RandomFeatures(4, redraw_every=0)
)


@pytest.mark.parametrize(("call", "kind", "message"), MISTAKES)
def test_mistakes_are_named_with_their_cure(
    call: Callable[[], object], kind: type[ManyheadsError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call()
