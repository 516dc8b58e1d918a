import pytest
import torch
from torch import nn
from torch.testing import assert_close

import manyheads as mh

BUILDS = {
    "plain": {},
    "GQA": {"num_kv_heads": 2},
    "without bias": {"bias": False},
    "norms": {"qk_norm": "rms", "num_kv_heads": 1},
}


def pair(**options: object) -> tuple[mh.MultiHeadAttention, mh.MultiHeadAttention]:
    packed = mh.MultiHeadAttention(16, 4, projections="packed", **options)
    return mh.MultiHeadAttention(16, 4, **options), packed


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("assign", [False, True])
def test_each_kind_loads_the_other_and_gives_the_same_numbers(name: str, assign: bool) -> None:
    x, context = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    for source, target in (pair(**BUILDS[name]), pair(**BUILDS[name])[::-1]):
        state = source.state_dict()
        names = list(state)
        target.load_state_dict(state, strict=True, assign=assign)
        assert list(state) == names, "the given state dict is left alone"
        for mask in (None, mh.Causal()):
            assert_close(target(x, mask=mask), source(x, mask=mask))
        assert_close(target(x, context), source(x, context))
        value = torch.randn(2, 7, 16)
        assert_close(target(x, context, value), source(x, context, value))


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_projections_share_no_memory(assign: bool) -> None:
    separate, packed = pair()
    for source, target in ((packed, separate), (separate, packed)):
        target.load_state_dict(source.state_dict(), assign=assign)
        before = {name: x.clone() for name, x in target.state_dict().items()}
        converted = [name for name in target.state_dict() if name not in source.state_dict()]
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.zero_()
        for name in converted:
            assert torch.equal(target.state_dict()[name], before[name]), name
        for parameter in target.parameters():
            nn.init.uniform_(parameter)
    places = {x.untyped_storage().data_ptr() for x in separate.state_dict().values()}
    assert len(places) == len(separate.state_dict())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("projections", ["separate", "packed"])
def test_the_state_of_torchs_own_layer_loads(projections: str, bias: bool) -> None:
    theirs = nn.MultiheadAttention(16, 4, batch_first=True, bias=bias)
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
    ours = mh.MultiHeadAttention(16, 4, bias=bias, projections=projections)  # type: ignore[arg-type]
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 5, 16)
    assert_close(ours(x), theirs(x, x, x, need_weights=False)[0])


def test_torchs_layer_with_widths_of_its_own_loads() -> None:
    theirs = nn.MultiheadAttention(16, 4, kdim=10, vdim=3, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    ours = mh.MultiHeadAttention(16, 4, d_context=10, d_value=3)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x, context, value = torch.randn(2, 5, 16), torch.randn(2, 7, 10), torch.randn(2, 7, 3)
    assert_close(ours(x, context, value), theirs(x, context, value, need_weights=False)[0])


def test_layers_inside_of_a_model_load_each_other() -> None:
    separate = nn.ModuleDict({"a": nn.ModuleList([pair()[0], pair()[0]])})
    packed = nn.ModuleDict({"a": nn.ModuleList([pair()[1], pair()[1]])})
    packed.load_state_dict(separate.state_dict(), strict=True)
    separate.load_state_dict(packed.state_dict(), strict=True)
    x = torch.randn(1, 3, 16)
    assert_close(separate["a"][1](x), packed["a"][1](x))


@pytest.mark.parametrize(("kept", "missing"), [("qkv_proj.bias", "qkv_proj.weight")])
def test_what_is_missing_or_of_another_size_is_still_said(kept: str, missing: str) -> None:
    separate, packed = pair()
    state = packed.state_dict()
    del state[missing]
    assert kept in state
    with pytest.raises(RuntimeError, match=r"q_proj\.weight"):
        separate.load_state_dict(state, strict=True)
    grouped = mh.MultiHeadAttention(16, 4, num_kv_heads=1, projections="packed")
    with pytest.raises(RuntimeError, match=r"qkv_proj\.weight"):
        separate.load_state_dict(grouped.state_dict(), strict=True)
    with pytest.raises(RuntimeError, match="size mismatch"):
        packed.load_state_dict(grouped.state_dict(), strict=True)
