"""Keys and values may come in widths of their own, and no weight is registered unused."""

import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import every_dtype, near
from tests.cases.layers import put

import manyheads as mh

SHAPES = {"q_proj": (4, 4), "k_proj": (4, 3), "v_proj": (4, 5), "out_proj": (4, 4)}


def layer_of_three_widths(dtype: torch.dtype = torch.float64) -> mh.MultiHeadAttention:
    """KDIM-01: width 4, two heads, keys of width 3 and values of width 5, no bias."""
    layer = mh.MultiHeadAttention(4, 2, d_context=3, d_value=5, bias=False, dtype=dtype)
    for number, (name, shape) in enumerate(SHAPES.items(), start=56):
        put(layer.get_submodule(name).weight, det(shape, number))
    return layer


def streams(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [
        torch.tensor(det(shape, number), dtype=dtype, requires_grad=True)
        for shape, number in (((1, 2, 4), 53), ((1, 3, 3), 54), ((1, 3, 5), 55))
    ]


@every_dtype
def test_the_numbers_are_those_worked_out_elsewhere(dtype: torch.dtype) -> None:
    out, weights = layer_of_three_widths(dtype).with_weights(*streams(dtype))
    # Products of products: half precision loses a bit in each.
    share = 4 if dtype in (torch.float16, torch.bfloat16) else 1
    near(
        out[0],
        [
            [-6.2420225388125, 6.3103018758864, 4.454548328722, -0.97324243561275],
            [-1.5167907180993, 8.8560049500214, -5.0540090559962, 2.1155181877305],
        ],
        share=share,
    )
    near(
        weights[0, 0],
        [
            [0.17353324956456, 0.21592329338764, 0.6105434570478],
            [0.00012571408381596, 0.10592793228278, 0.8939463536334],
        ],
        share=share,
    )


def test_every_registered_parameter_has_a_gradient() -> None:
    layer, inputs = layer_of_three_widths(), streams()
    layer(*inputs).sum().backward()
    assert sum(weight.numel() for weight in layer.parameters()) == 64
    for name, weight in layer.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.any(), name
    assert all(x.grad is not None for x in inputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"projections": "packed"},
        {"num_kv_heads": 1, "qk_norm": "rms"},
        {"d_context": 3},
        {"d_context": 3, "d_value": 5},
        {"d_value": 5},
    ],
    ids=str,
)
def test_no_choice_of_widths_leaves_a_parameter_unused(options: dict, bias: bool) -> None:
    layer = mh.MultiHeadAttention(4, 2, bias=bias, **options)
    x = torch.randn(2, 3, 4)
    context = torch.randn(2, 5, layer.d_context)
    value = torch.randn(2, 5, layer.d_value)
    layer(x, context, value if layer.d_value != layer.d_context else None).square().sum().backward()
    assert [name for name, weight in layer.named_parameters() if weight.grad is None] == []
