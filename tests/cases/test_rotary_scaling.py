"""ROPE-04: the tables of stretched rotaries, and their temperature, applied once."""

import math

import numpy as np
import pytest
import torch
from tests.cases.det import det
from tests.cases.exact import near

import manyheads as mh
from manyheads.positions.angles import frequencies

PLAIN = [10.0 ** (-i / 2) for i in range(8)]
YARN = {
    "rounded": [
        *(1, 0.3162277660168, 0.1, 0.02569350598887),
        *(0.00625, 0.001383496476324, 0.00025, 7.905694150421e-05),
    ],
    "unrounded": [
        *(1, 0.3162277660168, 0.1, 0.02387019232174),
        *(0.005056971521129, 0.0008112903817014, 0.00025, 7.905694150421e-05),
    ],
    "turns": [
        *(1, 0.3162277660168, 0.1, 0.01502649770326),
        *(0.003046651588997, 0.0007929214047442, 0.00025, 7.905694150421e-05),
    ],
}
LONGER = {
    "feature": [
        *(1, 0.3162277660168, 0.1, 0.03162277660168),
        *(0.01, 0.002569350598887, 0.000625, 0.0001383496476324),
    ],
    "pair": [
        *(1, 0.3162277660168, 0.1, 0.03162277660168),
        *(0.01, 0.002371708245126, 0.0005, 7.905694150421e-05),
    ],
}


def table(scaling: mh.positions.Scaling) -> torch.Tensor:
    return torch.tensor(scaling.frequencies(16, 10000.0), dtype=torch.float64)


def test_linear_scaling_divides_and_ntk_raises_the_base() -> None:
    near(table(mh.LinearScaling(4.0)), np.array(PLAIN) / 4)
    ntk = [
        *(1, 0.2594128170149, 0.06729500963162, 0.01745718801958),
        *(0.00452861832132, 0.001174781635919, 0.0003047534135511, 7.905694150421e-05),
    ]
    near(table(mh.NTKScaling(4.0)), ntk)
    assert ntk[-1] / PLAIN[-1] == pytest.approx(0.25, rel=1e-12)
    inside_the_power = [(4.0 * 10000.0) ** (-i / 8) for i in range(8)]
    assert inside_the_power[-1] == pytest.approx(9.401507732716e-05)
    assert abs(table(mh.NTKScaling(4.0)) - torch.tensor(inside_the_power)).max() > 5e-3


def test_dynamic_ntk_has_the_base_of_the_length() -> None:
    scaling = mh.DynamicNTKScaling(4.0, original_length=2048)
    bases = {5: 10000.0, 2048: 10000.0, 2049: 10022.324540873842, 4096: 62924.947532091326}
    found = scaling.frequencies_at(16, 10000.0, torch.tensor(list(bases)))
    near(found, [[base ** (-i / 8) for i in range(8)] for base in bases.values()])


@pytest.mark.parametrize("ramp", YARN)
def test_each_ramp_of_yarn_has_its_table(ramp: str) -> None:
    near(table(mh.YaRN(4.0, 2048, ramp=ramp)), YARN[ramp])


@pytest.mark.parametrize("ramp_end", LONGER)
def test_where_the_ramp_of_yarn_ends_matters_for_long_originals(ramp_end: str) -> None:
    near(table(mh.YaRN(4.0, 32768, ramp_end=ramp_end)), LONGER[ramp_end])


def test_llama_3_keeps_blends_and_divides() -> None:
    plain = frequencies(128, 5e5)
    scaled = mh.Llama3Scaling(8.0, original_length=8192).frequencies(128, 5e5)
    kept = [i for i in range(64) if scaled[i] == plain[i]]
    divided = [i for i in range(64) if scaled[i] == plain[i] / 8]
    assert (kept, divided) == (list(range(29)), list(range(35, 64)))
    blended = [
        *(0.002166570763503359, 0.0013718935677611381, 0.0008567514129196321),
        *(0.0005248461609929547, 0.00031269375038406517, 0.0001785078127679964),
    ]
    np.testing.assert_allclose(scaled[29:35], blended, rtol=1e-12)


@pytest.mark.parametrize("start", [0, 1, 3000])
@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
def test_the_temperature_of_yarn_multiplies_every_score_once(pairs: str, start: int) -> None:
    scaling = mh.YaRN(4.0, 2048)
    assert scaling.gain == pytest.approx(1.138629436111989, rel=1e-14)
    q, k = (torch.tensor(det((1, 2, 5, 16), number)) for number in (41, 42))
    rotary = mh.Rotary(16, scaling=scaling, pairs=pairs)
    cold = mh.Rotary(16, scaling=mh.YaRN(4.0, 2048, mscale=0.0), pairs=pairs)
    for at in (start, start + torch.arange(5)):
        scores = rotary(q, at) @ rotary(k, at).mT
        near(scores, (cold(q, at) @ cold(k, at).mT).numpy() * 1.2964769927807063)
    layer = mh.MultiHeadAttention(32, 2, rotary=rotary).double()
    plain = mh.MultiHeadAttention(32, 2, rotary=cold).double()
    plain.load_state_dict(layer.state_dict())
    with torch.no_grad():  # the same temperature, by hand, on the queries alone
        plain.q_proj.weight *= 1.2964769927807063
        plain.q_proj.bias *= 1.2964769927807063
    x = torch.tensor(det((1, 5, 32), 43))
    near(layer(x, mask=mh.Causal()), plain(x, mask=mh.Causal()).detach().numpy())


def test_deepseek_moves_the_temperature_to_the_scale_of_all_scores() -> None:
    scaling = mh.YaRN(40.0, 4096, mscale_all=1.0)
    assert scaling.gain == 1.0
    assert scaling.score_factor == pytest.approx(1.8738542070926265, rel=1e-14)
    plain = mh.YaRN(40.0, 4096)
    assert plain.score_factor == 1.0
    assert plain.gain**2 == pytest.approx(scaling.score_factor)
    # Where all features turn it makes no difference which of the two is multiplied.
    layer = mh.MultiHeadAttention(32, 2, rotary=mh.Rotary(16, scaling=scaling)).double()
    other = mh.MultiHeadAttention(32, 2, rotary=mh.Rotary(16, scaling=plain)).double()
    other.load_state_dict(layer.state_dict())
    x = torch.tensor(det((1, 5, 32), 43))
    near(layer(x), other(x).detach().numpy())
    (out, weights), expected = layer.with_weights(x), other.with_weights(x)
    near(out, expected[0].detach().numpy())
    near(weights, expected[1].detach().numpy())
    # Where some do not, it does: the scale reaches those too.
    parts = [mh.Rotary(16, rotary_dim=4, scaling=s) for s in (scaling, plain)]
    outs = []
    for part in parts:
        layer = mh.MultiHeadAttention(32, 2, rotary=part).double()
        layer.load_state_dict(other.state_dict())
        outs.append(layer(x))
    assert (outs[0] - outs[1]).abs().max() > 1e-3


def test_position_0_alone_would_see_nothing_of_it() -> None:
    x = torch.tensor(det((1, 1, 32), 43))
    layers = [mh.MultiHeadAttention(32, 2, rotary=mh.Rotary(16)).double()]
    layers.append(
        mh.MultiHeadAttention(32, 2, rotary=mh.Rotary(16, scaling=mh.YaRN(4.0, 2048))).double()
    )
    layers[1].load_state_dict(layers[0].state_dict())
    near(layers[0](x), layers[1](x).detach().numpy())
    assert math.isclose(layers[1].rotary.gain, 1.138629436111989)
