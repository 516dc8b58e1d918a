"""Find the head that maps the atoms of a chemical reaction, without being told which it is.

    python examples/08_atoms.py [FOLDER]

RXNMapper read a million reactions with atoms hidden, and nobody told it where atoms go. It comes
with a package of the index; none of its code runs, and nothing is downloaded here. With FOLDER it
also writes FOLDER/atoms.png.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import manyheads as mh
from manyheads.errors import MissingExtraError
from manyheads.interop.packages import RXNMAPPER, find_file
from manyheads.lens import draw_heatmap

# Aspirin, an ester, an amide, a Suzuki coupling, ...
REACTIONS = """
OC(=O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O
CC(=O)O.OCC>>CC(=O)OCC
OC(=O)c1ccccc1.NCc1ccccc1>>O=C(NCc1ccccc1)c1ccccc1
Brc1ccc(C)cc1.OB(O)c1ccccc1>>Cc1ccc(-c2ccccc2)cc1
CCBr.Oc1ccccc1>>CCOc1ccccc1
C=CC=C.C=CC(=O)OC>>COC(=O)C1CC=CCC1
Nc1ccc(O)cc1.CC(=O)OC(C)=O>>CC(=O)Nc1ccc(O)cc1
O=Cc1ccccc1.NCCC>>CCCNCc1ccccc1
COC(=O)c1ccncc1>>OC(=O)c1ccncc1
CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.NCCc1ccccc1>>CC(C)(C)OC(=O)NCCc1ccccc1
BrCC1CC1.Sc1ccccn1>>C(C1CC1)Sc1ccccn1
O=C(Cl)c1ccco1.C1CCNCC1>>O=C(c1ccco1)N1CCCCC1
Brc1cccnc1.C1COCCN1>>c1cncc(N2CCOCC2)c1
[O-][N+](=O)c1ccc(F)cc1.NCC>>CCNc1ccc([N+](=O)[O-])cc1
Ic1ccccc1.C#CCO>>OCC#Cc1ccccc1
CC(=O)c1ccccc1.O=Cc1ccc(Cl)cc1>>O=C(C=Cc1ccc(Cl)cc1)c1ccccc1
"""


class Reaction(NamedTuple):
    """A reaction as its tokens; atoms and bonds are numbers of tokens."""

    tokens: list[str]
    reactants: list[int]
    product: list[int]
    bonds: set[tuple[int, int]]


def parse(smiles: str) -> Reaction:
    """Read SMILES: a letter is an atom, bonded to the last one; digits close rings."""
    tokens = ["[CLS]", *re.findall(r"\[[^]]+\]|Br|Cl|>>|.", smiles), "[SEP]"]
    atoms, bonds = [], set()
    last: int | None = None
    branches: list[int | None] = []
    rings: dict[str, int | None] = {}
    for place, token in enumerate(tokens[1:-1], start=1):
        if token[0].isalpha() or token[0] == "[":
            atoms.append(place)
            bonds.add((last, place))
            last = place
        elif token == "(":
            branches.append(last)
        elif token == ")":
            last = branches.pop()
        elif token in (".", ">>"):
            last = None
        elif token.isdigit() and token in rings:
            bonds.add((rings.pop(token), last))
        elif token.isdigit():
            rings[token] = last
    arrow = tokens.index(">>")
    both_ways = {pair for a, b in bonds if a is not None for pair in ((a, b), (b, a))}
    return Reaction(
        tokens,
        [atom for atom in atoms if atom < arrow],
        [atom for atom in atoms if atom > arrow],
        both_ways,
    )


def likeness(reaction: Reaction, weights: Tensor) -> float:
    """How much a head's strongest keys look like a map of atoms; nobody says which map is right.

    Three shares, multiplied: atoms of the product that come from one of their own element, bonds
    of the product that were bonds before, atoms that are taken once.
    """
    chosen = [reaction.reactants[key] for key in weights.argmax(dim=-1).tolist()]
    comes_from = dict(zip(reaction.product, chosen, strict=True))
    kind = [reaction.tokens[a].upper() == reaction.tokens[b].upper() for a, b in comes_from.items()]
    kept = [
        (comes_from[a], comes_from[b]) in reaction.bonds
        for a, b in reaction.bonds
        if a in comes_from
    ]
    once = len(set(chosen)) / len(chosen)
    return sum(kind) / len(kind) * sum(kept) / len(kept) * once


def named(reaction: Reaction, atom: int) -> str:
    """An atom's element and where its token stands."""
    return f"{reaction.tokens[atom]}{atom}"


if __name__ == "__main__":
    try:
        vocabulary = find_file("RXNMapper", RXNMAPPER, "vocab.txt")
        from transformers import AlbertConfig, AlbertModel
    except (MissingExtraError, ModuleNotFoundError) as missing:
        print(missing)
        raise SystemExit(0) from None
    folder = vocabulary.parent
    model = AlbertModel(AlbertConfig.from_json_file(folder / "config.json"), False).eval()
    saved = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    ours = {name.removeprefix("albert."): each for name, each in saved.items()}
    model.load_state_dict({name: ours[name] for name in model.state_dict()})
    numbers = {token: n for n, token in enumerate(vocabulary.read_text().split())}

    def maps_of(reaction: Reaction) -> Tensor:
        """What each head's product atoms read of the reactants' (layers, heads, atoms, atoms)."""

        def between(call: mh.probe.AttentionCall) -> Tensor:
            rows, keys = (torch.tensor(each) for each in (reaction.product, reaction.reactants))
            return call.weights(rows, keys)[0]

        with torch.no_grad(), mh.probe.watch(model, each=between) as maps:
            model(torch.tensor([[numbers[token] for token in reaction.tokens]]))
        return torch.stack(maps)

    reactions = [parse(smiles) for smiles in REACTIONS.split()]
    likenesses = [
        [[likeness(reaction, head) for head in layer] for layer in maps_of(reaction)]
        for reaction in reactions
    ]
    found = torch.tensor(likenesses).mean(dim=0)  # (layers, heads)
    places = found.flatten().argsort(descending=True).tolist()
    print(f"How much each of {len(places)} heads looks like a map of atoms, 1 for a perfect one:")
    for place in (*places[:3], places[len(places) // 2]):
        layer, head = divmod(place, found.shape[1])
        print(f"  layer {layer:2}, head {head}: {found[layer, head]:.2f}")
    layer, head = divmod(places[0], found.shape[1])
    # Schwaller et al. 2021 chose theirs by looking: number 6 of the 11th layer, both from 1.
    assert (layer, head) == (10, 5)
    print("The authors of RXNMapper map atoms by layer 10, head 5.")

    aspirin = reactions[0]
    weights = maps_of(aspirin)[layer, head]
    print("Where the atoms of aspirin come from:")
    for atom, row in zip(aspirin.product, weights, strict=True):
        best = aspirin.reactants[int(row.argmax())]
        print(f"  {named(aspirin, atom)} from {named(aspirin, best)}, {row.max():.0%}")

    if len(sys.argv) > 1:
        path = Path(sys.argv[1]) / "atoms.png"
        names = [
            [named(aspirin, each) for each in atoms]
            for atoms in (aspirin.product, aspirin.reactants)
        ]
        draw_heatmap(weights, *names, title=f"layer {layer}, head {head}", path=path)
        print("wrote", path)
