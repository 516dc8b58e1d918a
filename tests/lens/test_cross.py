"""Which calls are of cross-attention, where both sides read one text and no label tells."""

import pytest
import torch
import transformers as hf

import manyheads as mh
from manyheads.lens import portray, summarize_heads, write_page
from manyheads.lens.summary import PLACES

IDS = torch.tensor([[3, 5, 3, 7, 5]])
SIZES = {"vocab_size": 20, "d_model": 16, "pad_token_id": 1, "decoder_start_token_id": 2}
FEW = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def bart():
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder")
             for name, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 8))}  # fmt: skip
    model = hf.BartModel(hf.BartConfig(**SIZES, **sides)).eval()
    return model, lambda: model(input_ids=IDS, decoder_input_ids=IDS), "encoder_attn"


def t5():
    model = hf.T5Model(hf.T5Config(**SIZES, d_kv=8, d_ff=8, num_layers=2, num_heads=2)).eval()
    return model, lambda: model(input_ids=IDS, decoder_input_ids=IDS), "EncDecAttention"


def bert():
    config = hf.BertConfig(vocab_size=20, is_decoder=True, add_cross_attention=True, **FEW)
    model, stream = hf.BertModel(config).eval(), torch.randn(1, 5, 16)
    return model, lambda: model(input_ids=IDS, encoder_hidden_states=stream), "crossattention"


def of_torch():
    model = torch.nn.Transformer(16, 2, 1, 1, 8, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    return model, lambda: model(x, x), "multihead_attn"


def ours():
    sizes = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 1)
    config = mh.TransformerConfig(20, 20, d_model=16, num_heads=2, d_hidden=8, **sizes)
    model = mh.Transformer(config).eval()
    return model, lambda: model(IDS, IDS), "cross"


@pytest.mark.parametrize("make", [bart, t5, bert, of_torch, ours])
def test_calls_of_cross_attention_are_told_from_the_others(make):
    torch.manual_seed(0)
    model, run, name = make()
    with torch.no_grad(), mh.probe.watch(model) as calls:
        run()
    found = {call.where: call.reads_context for call in calls}
    assert found == {where: name in where for where in found}
    assert len({*found.values()}) == 2


def test_keys_that_are_made_apart_from_the_queries_are_of_the_same_text_if_they_are_equal():
    layer, x = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval(), torch.randn(1, 5, 16)
    for keys, crosses in ((x + 0, False), (x + 1, True)):
        with torch.no_grad(), mh.probe.watch(layer) as calls:
            layer(x, keys, keys)
        assert calls[0].reads_context is crosses


def test_a_layer_whose_cache_holds_the_context_reads_it():
    layer, cache = mh.MultiHeadAttention(16, 2).eval(), mh.CrossCache()
    x = torch.randn(1, 5, 16)
    with torch.no_grad():
        layer(x, x + 1, cache=cache)
        with mh.probe.watch(layer) as calls:
            layer(x, cache=cache)
    assert calls[0].reads_context


def same_place():
    """A layer each of whose heads looks at the key in the query's own place."""
    layer = mh.MultiHeadAttention(8, 2).eval()
    with torch.no_grad():
        for part in (layer.q_proj, layer.k_proj):
            part.weight.copy_(40 * torch.eye(8))
            part.bias.zero_()
    return layer


def test_no_key_of_a_context_is_called_the_query_itself_in_words_or_on_the_page(tmp_path):
    layer, x = same_place(), torch.eye(4).repeat(1, 2)[None]
    text = torch.tensor([1, 2, 1, 2])
    with torch.no_grad(), mh.probe.watch(layer) as calls:
        layer(x)
        layer(x, x + 1e-6)
    own, other = (summarize_heads([call], text) for call in calls)
    assert {head.does for head in own} == {"itself"}
    assert {head.does for head in other} == {"same place"} <= {*PLACES.values()}
    assert own[0].duplicate is not None
    assert other[0].duplicate is other[0].induction is None  # whose keys are no such tokens
    portraits = [portray(call, text, layer=name) for call, name in zip(calls, "ab", strict=True)]
    assert [each.reads_context for each in portraits] == [False, True]
    assert [each.summaries[0].does for each in portraits] == ["itself", "same place"]
    page = write_page(portraits, list("abab"), path=tmp_path / "a.html").read_text("utf-8")
    assert page.count('"context":true') == page.count('"context":false') == 1
