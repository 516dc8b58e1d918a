"""Who may see whom.

A mask is a rule over positions and facts of tokens; ``&``, ``|`` and ``~`` combine masks.
"""

from manyheads.masks.base import Mask
from manyheads.masks.bound import Bound, bind, settle
from manyheads.masks.causal import Causal
from manyheads.masks.dense import Dense, as_mask
from manyheads.masks.dilated import Dilated
from manyheads.masks.documents import Documents
from manyheads.masks.dyadic import Dyadic
from manyheads.masks.facts import Tokens
from manyheads.masks.global_tokens import Global
from manyheads.masks.grid import Neighbourhood, Tiles
from manyheads.masks.outside import (
    from_attention_mask,
    from_attn_mask,
    from_key_padding_mask,
    from_sdpa_mask,
)
from manyheads.masks.padding import Padding
from manyheads.masks.parse import parse_mask
from manyheads.masks.per_head import PerHead
from manyheads.masks.picture import Description
from manyheads.masks.prefix import Prefix
from manyheads.masks.random_blocks import RandomBlocks
from manyheads.masks.rule import Rule
from manyheads.masks.strided import Fixed, Strided
from manyheads.masks.window import Window

MASKS: dict[str, type[Mask]] = {
    "Causal": Causal,
    "Window": Window,
    "Dilated": Dilated,
    "Strided": Strided,
    "Fixed": Fixed,
    "Dyadic": Dyadic,
    "RandomBlocks": RandomBlocks,
    "Neighbourhood": Neighbourhood,
    "Tiles": Tiles,
    "Padding": Padding,
    "Documents": Documents,
    "Prefix": Prefix,
    "Global": Global,
    "PerHead": PerHead,
    "Rule": Rule,
    "Dense": Dense,
}
"""Every mask, by the name that it is written with."""

__all__ = [
    "MASKS",
    "Bound",
    "Causal",
    "Dense",
    "Description",
    "Dilated",
    "Documents",
    "Dyadic",
    "Fixed",
    "Global",
    "Mask",
    "Neighbourhood",
    "Padding",
    "PerHead",
    "Prefix",
    "RandomBlocks",
    "Rule",
    "Strided",
    "Tiles",
    "Tokens",
    "Window",
    "as_mask",
    "bind",
    "from_attention_mask",
    "from_attn_mask",
    "from_key_padding_mask",
    "from_sdpa_mask",
    "parse_mask",
    "settle",
]
