"""A model whose every head was built by hand to do exactly one thing."""

import torch
from tests.lens.hand import TEXT
from torch import Tensor, nn

import manyheads as mh

TOKENS, PLACES = 10, len(TEXT)
D_MODEL, HEAD_DIM = 2 * TOKENS + PLACES, 32
SHARPNESS = 30.0

EVERY = torch.eye(D_MODEL)
TOKEN, PLACE, BEFORE = EVERY.split([TOKENS, PLACES, TOKENS])
"""What stands in the stream: the token, its place, and the token before it once that is known."""

ANYWHERE = PLACE.sum(dim=0, keepdim=True)
NOTHING = torch.zeros(1, D_MODEL)
FIRST = {
    # The place before one's own (the first asks for the last, which is hidden); and the token
    # from there is written down.
    "previous token": (PLACE.roll(-1, dims=0), PLACE),
    # One's own token, but at another place.
    "same token before": (torch.cat([TOKEN, PLACE]), torch.cat([TOKEN, -2 * PLACE])),
    "first token": (ANYWHERE, PLACE[:1]),
    "evenly": (NOTHING, NOTHING),
}
SECOND = {
    # A token before which stands one's own, but not the first, who took itself for it; and the
    # token itself is written down.
    "what followed last time": (
        torch.cat([TOKEN, ANYWHERE]),
        torch.cat([BEFORE, -2 * PLACE[:1]]),
    ),
    "itself": (PLACE, PLACE),
}


class HandMade(nn.Module):
    """Two layers of causal heads; the first head of each reads tokens, the others read nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layer_of(FIRST, to=BEFORE)
        self.second = layer_of(SECOND, to=TOKEN)

    def forward(self, ids: Tensor) -> Tensor:
        """What each token guesses to be the next, (batch, length, tokens)."""
        one_hot = nn.functional.one_hot(ids, TOKENS).float()
        place = torch.eye(PLACES).expand(len(ids), -1, -1)
        x = torch.cat([one_hot, place, torch.zeros_like(one_hot)], dim=-1)
        x = x + self.first(x, mask=mh.Causal())
        return 5 * self.second(x, mask=mh.Causal())[..., :TOKENS]


def layer_of(heads: dict[str, tuple[Tensor, Tensor]], *, to: Tensor) -> mh.MultiHeadAttention:
    """Heads that ask for the first features where the second ones stand."""
    layer = mh.MultiHeadAttention(D_MODEL, len(heads), head_dim=HEAD_DIM, bias=False)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        q, k, v = (
            projection.weight.view(len(heads), HEAD_DIM, D_MODEL)
            for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        for head, (asked, offered) in enumerate(heads.values()):
            q[head, : len(asked)] = asked * SHARPNESS * HEAD_DIM**0.5
            k[head, : len(offered)] = offered
        v[0, :TOKENS] = TOKEN
        layer.out_proj.weight[:, :TOKENS] = to.T
    return layer.eval()
