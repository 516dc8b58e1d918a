"""Find the head of a BERT that knows to which noun an article belongs, however far away it is.

    python examples/07_determiners.py [FOLDER]

It reads MiniLM, whose weights a package of the index brings; nothing is downloaded here. With
FOLDER it also writes FOLDER/minilm.html, a page with every head, to be opened in a browser.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load_file

import manyheads as mh
from manyheads.errors import MissingExtraError
from manyheads.interop.packages import MINILM, find_file
from manyheads.lens import portray, relation_share, write_page

# An article says how many words on its noun stands.
SENTENCES = """
the/2 young teacher reads a/3 very long letter from the/3 old english king to the/1 people
a/1 doctor quickly opened the/1 window and the/2 red door of the/1 house
the/1 men sold a/2 broken clock and an/2 old table at the/2 weekly market
the/2 famous woman wrote the/2 first chapter of a/3 long french novel in the/1 garden
the/1 company bought a/3 small green island near the/1 coast of the/2 new world
the/1 children love the/2 sweet cake that the/2 old woman baked in a/3 big black oven
the/3 tired young student forgot the/2 important book on the/2 yellow bus to the/1 city
his sister plays the/1 piano in a/2 large hall before the/3 whole royal family and the/1 king
"""


def nouns_of(sentence: str, length: int) -> list[int]:
    """For each token the number of its noun, -1 for those that are no article; [CLS] is token 0."""
    far = [int(word.partition("/")[2] or 0) for word in sentence.split()]
    nouns = [place + step if step else -1 for place, step in enumerate(far, start=1)]
    return [-1, *nouns, *[-1] * (length - 1 - len(nouns))]


if __name__ == "__main__":
    try:
        weights = find_file("MiniLM", MINILM, ".safetensors")
        from transformers import AutoTokenizer, BertConfig, BertModel
    except (MissingExtraError, ModuleNotFoundError) as missing:
        print(missing)
        raise SystemExit(0) from None
    model = BertModel(BertConfig.from_json_file(weights.parent / "config.json")).eval()
    model.load_state_dict(load_file(weights), strict=False)  # there it also holds 0, 1, 2, ... 511
    tokenizer = AutoTokenizer.from_pretrained(weights.parent)

    sentences = SENTENCES.strip().splitlines()
    texts = [re.sub(r"/\d", "", sentence) for sentence in sentences]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    nouns = torch.tensor([nouns_of(each, inputs["input_ids"].shape[1]) for each in sentences])
    with torch.no_grad(), mh.probe.watch(model) as calls:
        model(**inputs)

    (far, times), *_ = Counter(re.findall(r"/(\d)", SENTENCES)).most_common()
    is_article = nouns >= 0
    baseline = times / int(is_article.sum())
    print(f"Of {is_article.sum()} articles, {baseline:.0%} have their noun {far} words on.")

    shares = torch.stack([relation_share(call, nouns) for call in calls]).mean(dim=1)
    for place in shares.flatten().argsort(descending=True)[:3].tolist():
        layer, head = divmod(place, shares.shape[1])
        share = shares[layer, head]
        print(f"layer {layer}, head {head}: the key it reads most is the noun of {share:.0%}")
    assert shares.max() > 2 * baseline

    layer, head = divmod(int(shares.argmax()), shares.shape[1])
    is_right = calls[layer].peak().key[:, head] == nouns
    distance = nouns - torch.arange(nouns.shape[1])
    print(f"layer {layer}, head {head}, by how many words on the noun is:")
    for words in (1, 2, 3):
        among = is_right[is_article & (distance == words)]
        print(f"  {words}: right for {among.sum()} of {len(among)}")

    if len(sys.argv) > 1:
        one = tokenizer(texts[0], return_tensors="pt")
        (ids,) = one["input_ids"]
        with torch.no_grad(), mh.probe.watch(model, each=lambda call: portray(call, ids)) as kept:
            model(**one)
        tokens = tokenizer.convert_ids_to_tokens(ids)
        print("wrote", write_page(kept, tokens, path=Path(sys.argv[1]) / "minilm.html"))
