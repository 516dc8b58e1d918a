import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import manyheads as mh
from manyheads.errors import CacheError, DTypeError, OptionError, PositionError, ShapeError

SMALL = mh.TransformerConfig(
    13, 11, d_model=16, num_heads=4, d_hidden=24, num_encoder_layers=2, num_decoder_layers=2,
    dropout=0.0,
)  # fmt: skip
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0], [3, 2, 0, 0, 0]])
TARGET = torch.tensor([[1, 5, 6, 7], [1, 8, 9, 0], [1, 3, 0, 0]])
POSITIONS = ("sinusoidal", "learned", "rotary")


def model(**changes: object) -> mh.Transformer:
    return mh.Transformer(dataclasses.replace(SMALL, **changes), dtype=torch.float64).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_ragged_sequences_give_what_each_gives_alone(positions: str, norm: str) -> None:
    transformer = model(positions=positions, norm=norm, num_kv_heads=2, activation="swiglu")
    logits = transformer(SOURCE, TARGET)
    assert logits.shape == (3, 4, 11) and logits.isfinite().all()
    for row in range(3):
        source, target = (ids[row][ids[row] != 0][None] for ids in (SOURCE, TARGET))
        assert_close(logits[row : row + 1, : target.shape[1]], transformer(source, target))


def test_no_token_of_the_target_sees_a_later_one() -> None:
    transformer = model()
    changed = TARGET.clone()
    changed[:, 2:] = 4
    before, after = transformer(SOURCE, TARGET), transformer(SOURCE, changed)
    assert_close(before[:, :2], after[:, :2])
    assert not torch.allclose(before[0, 2:], after[0, 2:])


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("split", [[1, 1, 1, 1], [3, 1], [1, 0, 3]], ids=str)
def test_decoding_in_chunks_is_decoding_at_once(split: list[int], positions: str) -> None:
    transformer = model(positions=positions)
    memory, caches = transformer.encode(SOURCE), transformer.new_caches()
    parts = [transformer.decode(ids, memory, caches=caches) for ids in TARGET.split(split, 1)]
    found, right = torch.cat(parts, 1), transformer.decode(TARGET, memory)
    assert_close(found[TARGET != 0], right[TARGET != 0])
    assert [cache.text.length for cache in caches] == [4, 4]


@pytest.mark.parametrize("positions", POSITIONS)
def test_ragged_targets_go_on_each_from_its_own_end(positions: str) -> None:
    transformer = model(positions=positions)
    memory, caches = transformer.encode(SOURCE), transformer.new_caches()
    transformer.decode(TARGET, memory, caches=caches)
    more = torch.full((3, 1), 4)
    found = transformer.decode(more, memory, caches=caches)
    for row in range(3):
        target = torch.cat((TARGET[row][TARGET[row] != 0], more[row]))[None]
        right = transformer(SOURCE[row : row + 1], target)
        assert_close(found[row, 0], right[0, -1])


def test_a_source_of_padding_alone_is_read_as_nothing() -> None:
    transformer = model()
    source = torch.zeros_like(SOURCE[:, :3])
    assert transformer(source, TARGET).isfinite().all()
    transformer(source, TARGET)[TARGET != 0].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in transformer.parameters())
    assert transformer(SOURCE[:, :0], TARGET).isfinite().all()


def test_weights_come_by_the_names_of_the_heads_that_gave_them() -> None:
    transformer = model()
    logits, weights = transformer.with_weights(SOURCE, TARGET)
    assert_close(logits, transformer(SOURCE, TARGET))
    sizes = {name: tuple(each.shape[1:]) for name, each in weights.items()}
    assert sizes == {
        "encoder.0": (4, 5, 5), "encoder.1": (4, 5, 5),
        "decoder.0.self": (4, 4, 4), "decoder.0.cross": (4, 4, 5),
        "decoder.1.self": (4, 4, 4), "decoder.1.cross": (4, 4, 5),
    }  # fmt: skip
    for name, each in weights.items():
        padded = TARGET if "self" in name else SOURCE
        assert each.transpose(1, 3)[padded == 0].eq(0).all(), name


@pytest.mark.parametrize("tied", ["none", "target", "all"])
class TestTies:
    def build(self, tied: str, **place: object) -> mh.Transformer:
        config = dataclasses.replace(SMALL, target_vocab=13, tied=tied)  # type: ignore[arg-type]
        return mh.Transformer(config, **place).eval()

    def check(self, tied: str, transformer: mh.Transformer) -> None:
        source = transformer.source_embedding.tokens.weight
        target, output = transformer.target_embedding.tokens.weight, transformer.output.weight
        assert (output is target) is (tied != "none")
        assert (source is target) is (tied == "all")

    def test_they_hold_whatever_happens_to_the_module(self, tied: str) -> None:
        transformer = self.build(tied)
        self.check(tied, transformer)
        self.check(tied, copy.deepcopy(transformer))
        self.check(tied, transformer.double().to("cpu"))
        empty = self.build(tied, device="meta").to_empty(device="cpu")
        self.check(tied, empty)
        empty.reset_parameters()
        assert empty(SOURCE, TARGET).isfinite().all()
        assert nn.Sequential(self.build(tied, device="meta")).to_empty(device="cpu")
        assert len({p.data_ptr() for p in empty.parameters()}) == len(list(empty.parameters()))

    @pytest.mark.parametrize("assign", [False, True])
    def test_they_hold_through_a_strict_load(self, tied: str, assign: bool) -> None:
        whole = self.build(tied)
        other = self.build(tied, device="meta") if assign else self.build(tied)
        state = {name: x.clone() for name, x in whole.state_dict().items()}
        other.load_state_dict(state, strict=True, assign=assign)
        self.check(tied, other)
        assert torch.equal(other.eval()(SOURCE, TARGET), whole(SOURCE, TARGET))

    def test_logits_begin_of_moderate_size(self, tied: str) -> None:
        assert 0.1 < float(self.build(tied)(SOURCE, TARGET).detach().std()) < 3


def test_every_parameter_learns_but_the_padding() -> None:
    transformer = model(positions="learned", norm="pre")
    transformer(SOURCE, TARGET)[TARGET != 0].square().sum().backward()
    for name, parameter in transformer.named_parameters():
        assert parameter.grad is not None, name
    source = transformer.source_embedding.tokens.weight.grad
    assert source is not None and source[0].eq(0).all()


@pytest.mark.parametrize(("encoders", "decoders"), [(0, 1), (1, 0), (0, 0)])
def test_either_half_may_have_no_layers(encoders: int, decoders: int) -> None:
    transformer = model(num_encoder_layers=encoders, num_decoder_layers=decoders)
    assert transformer(SOURCE, TARGET).shape == (3, 4, 11)
    text = transformer.generate(SOURCE, max_new_tokens=3)
    assert torch.equal(text, transformer.generate(SOURCE, max_new_tokens=3, cached=False))


def test_an_odd_width_has_its_waves() -> None:
    assert model(d_model=15, num_heads=3)(SOURCE, TARGET).isfinite().all()


def test_batches_may_be_empty_and_ids_int32() -> None:
    transformer = model()
    assert transformer(SOURCE[:0], TARGET[:0]).shape == (0, 4, 11)
    assert transformer(SOURCE, TARGET[:, :0]).shape == (3, 0, 11)
    assert_close(transformer(SOURCE.int(), TARGET.int()), transformer(SOURCE, TARGET))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(dtype: torch.dtype) -> None:
    transformer = model()
    exact = transformer(SOURCE, TARGET)
    half = transformer.to(dtype)(SOURCE, TARGET)
    assert half.dtype == dtype
    assert (half.double() - exact)[TARGET != 0].abs().max() < 0.15


def test_it_compiles_without_a_break() -> None:
    torch._dynamo.reset()
    transformer = model(num_encoder_layers=1, num_decoder_layers=1)
    compiled = torch.compile(transformer, fullgraph=True, backend="eager")
    assert_close(compiled(SOURCE, TARGET), transformer(SOURCE, TARGET))


def refuse(kind: type[Exception], message: str, action: object) -> None:
    with pytest.raises(kind, match=message):
        action()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 0}, "d_model must be an int of at least 1"),
        ({"num_heads": 5}, "num_heads must divide d_model=16; got num_heads=5. These do: 1, 2, 4"),
        ({"num_heads": 5, "positions": "rotary"}, "num_heads must divide d_model=16"),
        ({"num_heads": 16, "positions": "rotary"}, "head_dim must be even"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads=4"),
        ({"num_encoder_layers": -1}, "num_encoder_layers must be an int of at least 0"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\)"),
        ({"norm": "none"}, "norm must be 'post' or 'pre'"),
        ({"activation": "tanh"}, "activation must be one of relu"),
        ({"positions": "alibi"}, "positions must be 'sinusoidal', 'learned' or 'rotary'"),
        ({"positions": "learned", "max_length": 0}, "max_length must be an int of at least 1"),
        ({"tied": "both"}, "tied must be 'none', 'target' or 'all'"),
        ({"tied": "all"}, "tied='all' must have one vocabulary"),
        ({"eos_id": 11}, "eos_id must be below target_vocab=11; got eos_id=11"),
        ({"pad_id": -1}, "pad_id must be below"),
        ({"pad_id": 2}, "pad_id must differ from bos_id=1 and eos_id=2; got pad_id=2"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_named(changes: dict[str, object], message: str) -> None:
    refuse(OptionError, message, lambda: model(**changes))


def test_ids_memories_and_caches_that_do_not_fit_are_named() -> None:
    transformer, one = model(), model(num_decoder_layers=1)
    memory = transformer.encode(SOURCE)
    refuse(DTypeError, "source must be int32 or int64", lambda: transformer(SOURCE / 2, TARGET))
    refuse(DTypeError, "target must be a torch.Tensor", lambda: transformer(SOURCE, [[1]]))
    refuse(ShapeError, r"source must be \(batch, length\)", lambda: transformer(SOURCE[0], TARGET))
    refuse(OptionError, "source must hold token ids from 0 to 12; got 2 to 13",
           lambda: transformer(SOURCE[:1] + (SOURCE[:1] == 8) * 5, TARGET[:1]))  # fmt: skip
    refuse(OptionError, "target must hold token ids from 0 to 10; got -1",
           lambda: transformer(SOURCE, TARGET - 1))  # fmt: skip
    refuse(ShapeError, "target and memory must have one batch size; got target=1, memory=3",
           lambda: transformer.decode(TARGET[:1], memory))  # fmt: skip
    refuse(CacheError, "caches must be one for each of 2 decoder layers; got 1",
           lambda: transformer.decode(TARGET, memory, caches=one.new_caches()))  # fmt: skip


def test_past_the_table_of_positions_nothing_is_touched() -> None:
    transformer = model(positions="learned", max_length=4)
    message = "positions must stay below max_length=4; got positions=4"
    refuse(PositionError, message, lambda: transformer(SOURCE, TARGET))
    memory, caches = transformer.encode(SOURCE[:, :4]), transformer.new_caches()
    transformer.decode(TARGET, memory, caches=caches)
    refuse(PositionError, message,
           lambda: transformer.decode(TARGET[:, :1], memory, caches=caches))  # fmt: skip
    assert caches[0].text.length == 4


def test_a_memory_is_masked_only_where_tokens_are_missing() -> None:
    memory = model().encode(SOURCE)
    assert isinstance(memory.context, Tensor) and isinstance(memory.mask, mh.Padding)
    assert model().encode(SOURCE[:1]).mask is None, "all tokens are there"
