"""What was seen in the steps of a text is what one pass over it sees."""

import pytest
import torch
from tests.models.generation.models import EXACT
from tests.models.test_transformer import SOURCE, model
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import ShapeError
from manyheads.models import assemble_weights


@torch.no_grad()
@pytest.mark.parametrize("split", [[7], [4, 1, 1, 1], [1] * 7, [2, 3, 2]], ids=str)
@pytest.mark.parametrize("kind", EXACT)
def test_a_layer_shows_the_same_in_steps(kind: str, split: list[int]) -> None:
    torch.manual_seed(0)
    layer = mh.MultiHeadAttention(16, 4, num_kv_heads=2, rotary=mh.Rotary(4)).double()
    x, cache, mask = torch.randn(2, 7, 16).double(), EXACT[kind](), mh.Causal() & mh.Window(3)
    steps = [layer.with_weights(part, mask=mask, cache=cache)[1] for part in x.split(split, 1)]
    whole = layer.with_weights(x, mask=mask)[1]
    assert_close(assemble_weights(steps), whole, rtol=0, atol=1e-12)
    # Steps after a prompt alone are the rows after the prompt's.
    later = assemble_weights(steps[1:]) if steps[1:] else whole[:, :, split[0] :]
    assert_close(later, whole[:, :, split[0] :], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_ring_shows_its_window_where_it_belongs() -> None:
    torch.manual_seed(1)
    layer, mask = mh.MultiHeadAttention(16, 4).double(), mh.Causal() & mh.Window(3)
    x, cache = torch.randn(2, 12, 16).double(), mh.RingCache(3)
    parts = x.split([5, 1, 1, 4, 1], 1)
    steps = [layer.with_weights(part, mask=mask, cache=cache)[1] for part in parts]
    assert steps[1].shape[3] < 6
    whole = layer.with_weights(x, mask=mask)[1]
    assert_close(assemble_weights(steps), whole, rtol=0, atol=1e-12)


@torch.no_grad()
def test_every_attention_of_a_text_that_was_generated_can_be_seen_whole() -> None:
    transformer = model(positions="rotary").double()
    text = transformer.generate(SOURCE, max_new_tokens=6)
    target = torch.cat((torch.ones_like(text[:, :1]), text[:, :-1]), dim=1)
    _, whole = transformer.with_weights(SOURCE, target)
    memory, caches = transformer.encode(SOURCE), transformer.new_caches()
    steps: list[list[torch.Tensor]] = []
    for column in target.split(1, dim=1):
        seen: list[torch.Tensor] = []
        transformer.decode(column, memory, caches=caches, weights_into=seen)
        steps.append(seen)
    for layer in range(len(transformer.decoder)):
        own = assemble_weights([seen[2 * layer] for seen in steps])
        context = torch.cat([seen[2 * layer + 1] for seen in steps], dim=2)
        assert_close(own, whole[f"decoder.{layer}.self"], rtol=0, atol=1e-10)
        assert_close(context, whole[f"decoder.{layer}.cross"], rtol=0, atol=1e-10)


def test_steps_that_are_of_no_text_are_refused() -> None:
    for steps in ([], [torch.zeros(1, 2, 3)], [torch.zeros(1, 2, 1, 1), torch.zeros(1, 3, 1, 2)]):
        with pytest.raises(ShapeError, match=r"steps must be \(batch, heads, q_len, kv_len\) of"):
            assemble_weights(steps)
    gap = [torch.zeros(1, 2, 1, 1), torch.zeros(1, 2, 1, 3)]
    with pytest.raises(ShapeError, match="steps must follow one another; got weights on 3 keys"):
        assemble_weights(gap)
