"""Find the heads of SmolLM2 that look up what followed last time, and take them away.

    python examples/05_induction_heads.py [FOLDER]

It needs SmolLM2's weights, which a package brings (docs/models.md). With FOLDER it also writes
FOLDER/smollm2.html, a page with every head, to be opened in a browser.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import manyheads as mh
from manyheads.errors import MissingExtraError
from manyheads.interop.smollm2 import SmolLM2
from manyheads.lens import induction_score, portray, without, write_page

HALF, TAKEN = 40, 20


def loss_of_the_copy() -> float:
    """How surprised the model is by the second half, which it has read a moment ago."""
    with torch.no_grad():
        logits = decoder(ids)[0, HALF:-1]
    return F.cross_entropy(logits, ids[0, HALF + 1 :]).item()


if __name__ == "__main__":
    try:
        model = SmolLM2.load()
    except MissingExtraError as missing:
        print(missing)
        raise SystemExit(0) from None
    decoder = model.decoder

    # A random text, written twice: nothing helps to guess the copy but to look it up.
    torch.manual_seed(0)
    ids = torch.randint(1000, 20_000, (1, HALF)).repeat(1, 2)

    def score(call: mh.probe.AttentionCall) -> list[tuple[float, str, int]]:
        """Each head's score, its layer and its number."""
        scores = induction_score(call, ids)[0].tolist()
        return [(each, call.where, head) for head, each in enumerate(scores)]

    with torch.no_grad(), mh.probe.watch(decoder, each=score) as found:
        decoder(ids)
    ranked = sorted((head for layer in found for head in layer), reverse=True)
    for value, layer, number in ranked[:5]:
        print(f"{layer}, head {number}: {value:4.0%} of its weight on what followed last time")

    heads = [(layer, number) for _, layer, number in ranked]
    others = [heads[i] for i in torch.randperm(len(heads) - TAKEN)[:TAKEN] + TAKEN]
    whole = loss_of_the_copy()
    with without(decoder, heads[:TAKEN]):
        blind = loss_of_the_copy()
    with without(decoder, others):
        spared = loss_of_the_copy()
    print(f"loss on the copy: {whole:.2f}")
    print(f"  without the {TAKEN} best of these heads: {blind:.2f}")
    print(f"  without {TAKEN} others: {spared:.2f}")
    assert ranked[0][0] > 0.5
    assert blind - whole > 3 * (spared - whole)

    if len(sys.argv) > 1:
        with torch.no_grad(), mh.probe.watch(decoder, each=lambda call: portray(call, ids)) as kept:
            decoder(ids)
        tokens = [model.tokenizer.decode([each]) for each in ids[0].tolist()]
        print("wrote", write_page(kept, tokens, path=Path(sys.argv[1]) / "smollm2.html"))
