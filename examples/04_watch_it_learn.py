"""Watch one head learn where to look: the target is the source, backwards.

    python examples/04_watch_it_learn.py [FOLDER]

With FOLDER, and matplotlib installed, the last map becomes FOLDER/reverse.png.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyheads as mh
from manyheads.lens import draw_heatmap

LENGTH, VOCABULARY, D_MODEL = 8, 12, 32


class Reverser(nn.Module):
    """Each target place asks, by its position alone, for one token of the source."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, D_MODEL)
        self.source_places = mh.Learned(LENGTH, D_MODEL)
        self.target_places = mh.Learned(LENGTH, D_MODEL)
        self.look = mh.MultiHeadAttention(D_MODEL, num_heads=1)
        self.output = nn.Linear(D_MODEL, VOCABULARY)

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the target, and the weights of the one head."""
        tokens = self.tokens(source)
        asked = self.target_places(torch.zeros_like(tokens))
        found, weights = self.look.with_weights(asked, self.source_places(tokens), tokens)
        return self.output(found), weights[:, 0]


def mass_on_the_answer(weights: Tensor) -> float:
    """The weight on the source token that each target token comes from, averaged."""
    return weights.flip(-1).diagonal(dim1=-2, dim2=-1).mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Reverser()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(101):
        source = torch.randint(VOCABULARY, (64, LENGTH))
        logits, weights = model(source)
        loss = F.cross_entropy(logits.flatten(0, 1), source.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            right = (logits.argmax(-1) == source.flip(1)).float().mean().item()
            mass = mass_on_the_answer(weights)
            print(f"step {step:3}: {right:4.0%} right, {mass:4.0%} of the weight on the answer")
    assert mass_on_the_answer(weights) > 0.9

    if len(sys.argv) > 1:
        places = [f"target {i}" for i in range(LENGTH)], [f"source {i}" for i in range(LENGTH)]
        answer = [(i, LENGTH - 1 - i) for i in range(LENGTH)]
        path = Path(sys.argv[1]) / "reverse.png"
        draw_heatmap(weights[0], *places, title="reverse, after 100 steps", marks=answer, path=path)
        print("wrote", path)
