"""timm's vision transformers, watched as they run fused and as they write weights out."""

import importlib
import importlib.util
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import manyheads as mh

HOW = (
    "needs timm; ends with: pip install --no-deps --target build/timm timm torchvision && "
    "PYTHONPATH=build/timm pytest tests/interop_peers/test_timm.py"
)
SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "num_classes": 5}
MODELS = {
    "vit": ("vision_transformer.VisionTransformer", {"depth": 2, "num_heads": 4}),
    "vit with norms": (
        "vision_transformer.VisionTransformer",
        {"depth": 2, "num_heads": 4, "qk_norm": True, "reg_tokens": 3},
    ),
    "beit": ("beit.Beit", {"depth": 2, "num_heads": 4, "use_rel_pos_bias": True}),
    "swin": (
        "swin_transformer.SwinTransformer",
        {"depths": (2, 2), "num_heads": (2, 4), "window_size": 4},
    ),
}


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    if importlib.util.find_spec("timm") is None:
        pytest.skip(HOW)
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        # The index has torchvision for CUDA. Beside a torch for CPUs it misses its own operators,
        # of which timm's models call none, and stops at these two.
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
    return importlib.import_module("timm.layers")


def built(layers: ModuleType, name: str, *, fused: bool) -> nn.Module:
    path, options = MODELS[name]
    module, kind = path.split(".")
    layers.set_fused_attn(fused, experimental=fused)
    torch.manual_seed(0)
    model = getattr(importlib.import_module(f"timm.models.{module}"), kind)(**SIZES, **options)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_weights_are_those_that_the_unfused_twin_drops_out(layers, name):
    fused, written = built(layers, name, fused=True), built(layers, name, fused=False)
    x, right = torch.randn(2, 3, 32, 32), []

    def keep(_: nn.Module, given: tuple[Tensor]) -> None:
        right.append(given[0].clone())

    for path, module in written.named_modules():
        if path.endswith("attn_drop"):
            module.register_forward_pre_hook(keep)
    written(x)
    for model, source in ((fused, "sdpa"), (written, "pattern")):
        plain = model(x)
        with mh.probe.watch(model) as calls:
            assert model(x).equal(plain)
        assert {call.source for call in calls} == {source}
        for call, weights in zip(calls, right[: len(calls)], strict=True):
            torch.testing.assert_close(call.weights(), weights, rtol=0, atol=1e-5)
    assert len(calls) == sum(path.endswith(".attn") for path, _ in fused.named_modules())


def test_relevance_reaches_the_pixels_on_both_paths(layers):
    found = []
    for fused in (True, False):
        model, x = built(layers, "vit", fused=fused), torch.ones(1, 3, 32, 32).tril()
        found.append(mh.lens.relevance(model, lambda m=model, x=x: m(x)[0, 2], queries=[0]))
    assert found[0].shape == (1, 1, 65)
    torch.testing.assert_close(*found)
