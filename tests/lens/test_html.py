"""The page of all heads: what is in the file, and what a browser makes of it."""

import json
import re
import shutil
import subprocess
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.errors import OptionError, ShapeError
from manyheads.lens import HeadSummary, Portrait, portray, write_page
from manyheads.lens.packing import FINENESSES, pack

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
EVIL = ["</script><b>x", "<img src=x onerror=alert(1)>", "$x$", "", " ", "\n", "é", "注意力", "a"]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="ends where a chromium is installed")


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
        assert (layer["exact"], layer["bits"]) == (True, 16)
        cells = np.frombuffer(data, "<u2", 2 * 9 * 9, at).reshape(2, 9, 9) / 0xFFFF
        at += 2 * 2 * 9 * 9
        keys = np.frombuffer(data, "<u2", 2 * 9 * 5, at).reshape(2, 9, 5)
        at += 2 * 2 * 9 * 5
        top = np.frombuffer(data, "<u2", 2 * 9 * 5, at).reshape(2, 9, 5) / 0xFFFF
        at += 2 * 2 * 9 * 5 + 2 * 4 * 2 * 9  # and two profiles
        weights = call.weights()[0].numpy()
        np.testing.assert_allclose(cells, weights, atol=1e-5)
        np.testing.assert_allclose(top[..., 0], weights.max(-1), atol=1e-5)
        assert (keys[..., 0] == weights.argmax(-1)).all()
        assert (keys[:, 0, 1:] == 9).all()  # the first query sees itself alone
    assert at == len(data)


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
    plain = re.sub(r'id="data">.*?<', "<", text)
    assert not re.search(r"https?:|url\(|@import|import\(|fetch\(|innerHTML", plain)
    assert "default-src 'none'" in text


def test_144_heads_at_32k_tokens_fit_into_five_megabytes(tmp_path):
    tokens = [f"token{i}" for i in range(32_768)]
    path = write_page(made_up(32_768), tokens, path=tmp_path / "long.html")
    assert path.stat().st_size < 5_000_000
    headers, _ = pack(made_up(32_768, layers=2), 10**8)
    assert headers[0]["bits"] == 16
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


def test_what_cannot_be_written_is_refused(tmp_path):
    found = [portray(call) for call in watched(3)]
    with pytest.raises(OptionError, match=r"path must end in \.html"):
        write_page(found, list("abc"), path=tmp_path / "heads.png")
    with pytest.raises(OptionError, match=r"path must end in \.html"):
        write_page(found, list("abc"), path=tmp_path / "nowhere" / "heads.html")
    with pytest.raises(OptionError, match="portraits must hold"):
        write_page([], [], path=tmp_path / "heads.html")
    with pytest.raises(ShapeError, match="query_labels must be as many as q_len=3"):
        write_page(found, list("abcd"), path=tmp_path / "heads.html")
    with pytest.raises(OptionError, match="sequence must be one of the 1"):
        portray(watched(3)[0], sequence=1)
    assert list(tmp_path.iterdir()) == []


def opened(address, folder):
    """What chromium makes of a page."""
    assert CHROMIUM is not None
    return subprocess.run(
        [CHROMIUM, "--headless", "--dump-dom", "--virtual-time-budget=5000", *FLAGS,
         f"--user-data-dir={folder / 'profile'}", address],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip


@needs_chromium
def test_chromium_shows_the_number_of_the_query_in_the_address(tmp_path):
    calls = watched(len(EVIL))
    path = write_page([portray(call) for call in calls], EVIL, path=tmp_path / "heads.html")
    dom = opened(f"{path.as_uri()}#head=3&query=7", tmp_path)
    assert 'data-ready="true"' in dom
    weights = calls[1].weights()[0, 1, 7]
    best = int(weights.argmax())
    said = re.search(r'id="readout"[^>]*>([^<]*)', dom)
    assert said is not None
    assert f"query 7 “注意力” → key {best}" in said[1]
    shown = float(re.findall(r": (\d\.\d+)", said[1])[0])
    assert shown == pytest.approx(float(weights[best]), abs=1e-4)


@needs_chromium
def test_chromium_opens_all_heads_of_a_text_of_32k_tokens(tmp_path):
    found = made_up(32_768)
    tokens = [f"token{i}" for i in range(32_768)]
    path = write_page(found, tokens, path=tmp_path / "long.html")
    row = int(found[11].rows[128])  # every second one of 512 is kept where there is less room
    dom = opened(f"{path.as_uri()}#head=143&query={row}", tmp_path)
    assert dom.count("data-place=") == 144
    key = int(found[11].top_keys[11, 128, 0])
    assert f"query {row} “token{row}” → key {key} “token{key}”" in dom


@needs_chromium
def test_hovering_and_clicking_show_the_right_numbers_without_an_error(tmp_path):
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="ends with pip install playwright"
    )
    calls = watched(len(EVIL))
    path = write_page([portray(call) for call in calls], EVIL, path=tmp_path / "heads.html")
    weights = calls[0].weights()[0, 1]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_context(offline=True).new_page()
        mistakes = []
        page.on("console", lambda message: mistakes.append(message.text))
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached", timeout=3000)
        page.click("#overview button[data-place='1']")
        side = page.locator("canvas.map").bounding_box()["width"]
        page.hover("canvas.map", position={"x": side * 2.5 / 9, "y": side * 6.5 / 9})
        said = page.inner_text("#readout")
        assert said.startswith("query 6 “é” → key 2 “$x$”")
        assert float(said.rsplit(": ", 1)[1]) == pytest.approx(float(weights[6, 2]), abs=1e-4)
        page.click("#text .token[data-token='8']")
        assert "locked" in page.inner_text("#readout")
        assert "query=8" in page.url
        page.keyboard.press("k")
        assert page.inner_text("#readout").startswith("query 7")
        page.keyboard.press("c")
        page.keyboard.press("ArrowRight")
        assert page.locator(".panel").count() == 2
        browser.close()
    assert mistakes == []
