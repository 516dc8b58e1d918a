"""The page of all heads: what is in the file. What a browser makes of it: test_browser.py."""

import json
import re
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import OptionError, ShapeError
from manyheads.lens import HeadSummary, Portrait, of_weights, portray, write_page
from manyheads.lens.packing import FINENESSES, FINEST, ROUGH, _scaled, pack

EVIL = ["</script><b>x", "<img src=x onerror=alert(1)>", "$x$", "", " ", "\n", "é", "注意力", "a"]


class Stack(torch.nn.Module):
    """Two causal layers with sharp heads."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(mh.MultiHeadAttention(16, 2) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x, mask=mh.Causal())
        return x


def watched(length):
    """The calls of a model on one random text."""
    torch.manual_seed(0)
    model = Stack().eval()
    with torch.no_grad(), mh.probe.watch(model) as calls:
        model(3 * torch.randn(1, length, 16))
    return calls


def made_up(length, layers=12, heads=12):
    """Portraits of noise, which cannot be packed any smaller."""
    torch.manual_seed(0)
    summary = HeadSummary("", 0, 3.123, 0.5, 123.4, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, (), "mixed")
    return [
        Portrait(
            f"layers.{layer}.self_attn",
            (length, length),
            torch.rand(heads, 128, 128),
            torch.linspace(0, length - 1, 512).round().long(),
            torch.randint(length, (heads, 512, 5)),
            torch.rand(heads, 512, 5),
            {"effective keys": torch.rand(heads, 128), "distance": torch.rand(heads, 128)},
            [summary] * heads,
        )
        for layer in range(layers)
    ]


class Page(HTMLParser):
    """The tags of a page with their attributes, and what its scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts = [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags[-1:] and self.tags[-1][0] == "script":
            name = self.tags[-1][1].get("id", "module")
            self.scripts[name] = self.scripts.get(name, "") + data


def unscaled(data, at, rows, length, steps=FINEST):
    """Rows of numbers as explorer/data.js unpacks them, and where they end in the bytes."""

    def pairs(count, at):
        low, high = (np.frombuffer(data, "u1", count, at + half * count) for half in (0, 1))
        return low + 256 * high.astype("<u4"), at + 2 * count

    halves, at = pairs(rows, at)
    greatest = (halves << 16).view("<f4").astype(float)[:, None]
    if steps <= ROUGH:
        taken = np.frombuffer(data, "u1", rows * length, at).reshape(rows, length)
        return greatest * (taken / steps) ** 2, at + rows * length
    taken, at = pairs(rows * length, at)
    return greatest * taken.reshape(rows, length) / steps, at


def test_the_page_holds_the_weights_the_strongest_keys_and_the_text_as_they_are(tmp_path):
    calls = watched(len(EVIL))
    path = write_page([portray(call) for call in calls], EVIL, path=tmp_path / "heads.html")
    page = Page(path.read_text("utf-8"))
    content = json.loads(page.scripts["content"])
    assert content["texts"] == [
        [*EVIL[:3], "∅", "␣", "↵", *EVIL[6:]]
    ]  # once, though four sides of two layers have it
    assert [layer["layer"] for layer in content["layers"]] == ["layers.0", "layers.1"]
    data = zlib.decompress(b64decode(page.scripts["data"]))
    at = 0
    for layer, call in zip(content["layers"], calls, strict=True):
        assert (layer["exact"], layer["steps"], layer["rows"]) == (True, FINEST, [])
        cells, at = unscaled(data, at, 2 * 9, 9)
        np.testing.assert_allclose(cells.reshape(2, 9, 9), call.weights()[0].numpy(), atol=1.1e-5)
        keys, at = unscaled(data, at, 2, 9)
        np.testing.assert_allclose(keys, call.entropy()[0].exp().numpy(), rtol=1e-4)
        _, at = unscaled(data, at, 2, 9)
    assert at == len(data)


@pytest.mark.parametrize(("steps", "off"), [(FINEST, 1.02e-5), (5_000, 1.02e-4), (ROUGH, 4e-3)])
def test_a_weight_is_right_to_a_share_of_its_rows_greatest_however_small_that_is(steps, off):
    torch.manual_seed(0)
    size = 10.0 ** torch.linspace(0, -30, 40)[:, None]
    rows = torch.rand(40, 300) * size
    rows[::4] = size[::4] * (1 - 1e-3 * torch.rand(10, 300))  # nearly even
    rows[7] = 0
    found, _ = unscaled(_scaled(rows, steps), 0, 40, 300, steps)
    greatest = rows.amax(-1, keepdim=True)
    assert ((torch.from_numpy(found) - rows).abs() <= off * greatest).all()
    assert steps < FINEST or len(np.unique(found[4])) > 45  # and no band


def test_no_token_or_title_becomes_a_tag_and_nothing_is_fetched(tmp_path):
    found = [portray(call) for call in watched(len(EVIL))]
    path = write_page(found, EVIL, path=tmp_path / "a.html", title="<script>alert(1)</script>")
    text = path.read_text("utf-8")
    page = Page(text)
    names = [name for name, _ in page.tags]
    assert names.count("script") == 3
    assert "img" not in names
    assert "b" not in names
    for _, attributes in page.tags:
        assert {"src", "href", "action", "data"}.isdisjoint(attributes)
    assert "<title>&lt;script&gt;alert(1)" in text
    # The one address in it is the name of SVG's elements, which nothing fetches.
    plain = re.sub(r'id="data">.*?<', "<", text).replace('"http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|url\(|@import|import\(|fetch\(|innerHTML", plain)
    assert "default-src 'none'" in text


def test_half_a_character_in_a_name_is_spelled(tmp_path):
    portraits = [portray(watched(3)[0], layer="\udcff")]
    path = tmp_path / "a.html"
    write_page({"\ud800": portraits}, ["a", "b", "c"], path=path, title="\udc80")
    page = path.read_text(encoding="utf-8")
    assert "<title>\\udc80</title>" in page
    assert '"readings":["\\ud800"]' in page and '"layer":"\\udcff"' in page


def test_144_heads_at_32k_tokens_fit_into_five_megabytes(tmp_path):
    tokens = [f"token{i}" for i in range(32_768)]
    path = write_page(made_up(32_768), tokens, path=tmp_path / "long.html")
    assert path.stat().st_size < 5_000_000
    headers, _ = pack(made_up(32_768, layers=2), 10**8)
    assert headers[0]["steps"] == FINEST
    assert (headers[0]["keyBytes"], headers[0]["exact"]) == (2, False)
    assert pack(made_up(70_000, layers=1), 10**8)[0][0]["keyBytes"] == 4
    sizes = [len(pack(made_up(32_768, 1), room)[1]) for room in (10**6, 300_000, 100_000, 20_000)]
    assert all(finer > coarser for finer, coarser in pairwise(sizes))
    assert len(FINENESSES) > 4
    with pytest.raises(OptionError, match="portraits must fit"):
        pack(made_up(32_768), 1000)


def test_a_long_call_keeps_the_greatest_weight_of_each_cell_and_512_rows():
    (call, _) = watched(700)
    portrait = portray(call)
    assert portrait.cells.shape == (2, 128, 128)
    assert not portrait.is_exact
    assert len(portrait.rows) == 512
    assert (portrait.rows[0], portrait.rows[-1]) == (0, 699)
    weights = call.weights()[0]
    torch.testing.assert_close(portrait.cells.amax((1, 2)), weights.amax((1, 2)))
    strongest = weights[:, portrait.rows].amax(-1)
    torch.testing.assert_close(portrait.top_weights[..., 0], strongest, atol=1e-4, rtol=0)
    assert portrait.profiles["distance"].shape == (2, 128)


def test_windows_are_kept_exactly_and_what_lies_outside_of_the_call_is_left_out(tmp_path):
    (call, _) = watched(200)
    windows = [(slice(100, 150), slice(90, 400)), (slice(300, 310), slice(0, 9))]
    portrait = portray(call, windows=windows)
    (cutout,) = portrait.cutouts
    assert (cutout.rows, cutout.keys) == ((100, 150), (90, 200))
    torch.testing.assert_close(cutout.weights, call.weights()[0, :, 100:150, 90:200])
    (header,), data = pack([portrait])
    assert header["windows"] == [[100, 150, 90, 200]]
    (without,), less = pack([portray(call)])
    assert without["windows"] == []
    assert len(data) > len(less)
    assert portray(watched(20)[0], windows=[(slice(5), slice(5))]).cutouts == ()  # all is exact


def test_every_weight_of_144_real_heads_of_128_tokens_fits_exactly(tmp_path):
    torch.manual_seed(0)
    found = [
        portray(of_weights((2 * torch.randn(1, 12, 128, 128)).softmax(-1)), layer=f"layer {i}")
        for i in range(12)
    ]
    path = write_page(found, [f"token{i}" for i in range(128)], path=tmp_path / "exact.html")
    assert path.stat().st_size <= 5_000_000
    content = json.loads(Page(path.read_text("utf-8")).scripts["content"])
    assert {(layer["exact"], layer["steps"]) for layer in content["layers"]} == {(True, FINEST)}


def test_a_coarser_cell_has_the_greatest_of_the_cells_in_it():
    (portrait, *_) = made_up(1000, layers=1, heads=2)
    (header,), data = pack([portrait], 12_000)
    side = header["width"]
    assert 128 % side == 0
    assert side < 128
    cells, _ = unscaled(zlib.decompress(data), 0, 2 * side, side, header["steps"])
    blocks = portrait.cells.reshape(2, side, 128 // side, side, 128 // side).amax((2, 4))
    np.testing.assert_allclose(cells.reshape(blocks.shape), blocks.numpy(), atol=0.005)
    assert header["rows"][-1] == 999  # the query that writes on


def test_two_readings_share_a_text_or_have_their_own(tmp_path):
    one, other = ([portray(call) for call in watched(n)] for n in (3, 4))
    shared = write_page({"a": one, "b": one}, list("xyz"), path=tmp_path / "a.html")
    content = json.loads(Page(shared.read_text("utf-8")).scripts["content"])
    assert content["readings"] == ["a", "b"]
    assert content["texts"] == [["x", "y", "z"]]
    assert [layer["reading"] for layer in content["layers"]] == [0, 0, 1, 1]
    labels = {"a": list("xyz"), "b": {"layers.0": list("stuv"), "layers.1": list("STUV")}}
    own = write_page({"a": one, "b": other}, labels, path=tmp_path / "b.html")
    texts = json.loads(Page(own.read_text("utf-8")).scripts["content"])["texts"]
    assert ["".join(text) for text in texts] == ["xyz", "stuv", "STUV"]
    with pytest.raises(ShapeError, match="query_labels must have the labels of each reading"):
        write_page({"a": one, "b": other}, {"a": list("xyz")}, path=tmp_path / "c.html")
    with pytest.raises(ShapeError, match="query_labels must be as many as q_len=4"):
        write_page({"a": one, "b": other}, list("xyz"), path=tmp_path / "c.html")
    with pytest.raises(OptionError, match="portraits must hold"):
        write_page({"a": one, "b": []}, list("xyz"), path=tmp_path / "c.html")


def test_labels_as_long_as_pages_leave_room_for_the_weights(tmp_path):
    labels = ["x" * 10_000] * 2000
    found = made_up(2000, layers=1, heads=1)
    assert write_page(found, labels, path=tmp_path / "a.html").stat().st_size < 400_000


def test_a_call_that_has_no_picture_is_refused():
    empty = mh.statistics(*torch.zeros(3, 1, 2, 0, 4))
    with pytest.raises(OptionError, match=r"a call must have heads, queries and keys .* q_len=0"):
        portray(empty)
    q = torch.full((1, 1, 3, 4), torch.nan)
    with pytest.raises(OptionError, match=r"weights must be finite .* NaN in lost"):
        portray(mh.statistics(q, q, q), layer="lost")


def test_what_cannot_be_written_is_refused(tmp_path):
    found = [portray(call) for call in watched(3)]
    with pytest.raises(OptionError, match=r"path must end in one of \.html"):
        write_page(found, list("abc"), path=tmp_path / "heads.png")
    with pytest.raises(OptionError, match=r"path must lie in a folder that"):
        write_page(found, list("abc"), path=tmp_path / "nowhere" / "heads.html")
    with pytest.raises(OptionError, match="portraits must hold"):
        write_page([], [], path=tmp_path / "heads.html")
    with pytest.raises(ShapeError, match="query_labels must be as many as q_len=3"):
        write_page(found, list("abcd"), path=tmp_path / "heads.html")
    with pytest.raises(ShapeError, match="key_labels must be as many as kv_len=3"):
        write_page(found, list("abc"), list("ab"), path=tmp_path / "heads.html")
    with pytest.raises(OptionError, match="sequence must be one of the 1"):
        portray(watched(3)[0], sequence=1)
    assert list(tmp_path.iterdir()) == []
