"""Weights under the names of others, into a decoder."""

import re
from collections.abc import Collection, Iterable, Mapping

from torch import Tensor

from manyheads.errors import CheckpointError
from manyheads.models import Decoder, DecoderConfig

LAYER = re.compile(r"\.(\d+)\.")


def fill_decoder(
    config: DecoderConfig,
    weights: Iterable[tuple[str, Tensor]],
    names: Mapping[str, str],
    *,
    ignored: Collection[str] = (),
) -> Decoder:
    """A decoder that holds these weights, in evaluation mode; none of them is copied.

    Args:
        config: The numbers of the model.
        weights: Each with the name that it has elsewhere.
        names: Ours for each module elsewhere, with ``{}`` for the number of the layer.
        ignored: Names elsewhere of what a decoder does without.

    Raises:
        CheckpointError: If a weight is missing, too many or of another shape.
    """
    decoder = Decoder(config, device="meta")
    unwanted = {*ignored, *(("lm_head.weight", "output.weight") if config.tied else ())}
    state, strange = {}, []
    for name, weight in weights:
        if LAYER.sub(".{}.", name) in unwanted:
            continue
        ours = renamed(name, names)
        if ours is None:
            strange.append(name)
        else:
            state[ours] = weight
    try:
        missing, more = decoder.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"weights must have the shapes that the config says; got others: "
            f"{str(error).splitlines()[-1].strip()} Take weights and config of one model."
        ) from None
    for what, found in (("missing", missing), ("unknown", [*strange, *more])):
        if found:
            raise CheckpointError(
                f"weights must be all those of the model, and no others; got {len(found)} "
                f"{what}: {', '.join(found[:3])}. Is it a whole language model, not a part or an "
                f"adapter of one?"
            )
    return decoder.eval()


def renamed(name: str, names: Mapping[str, str]) -> str | None:
    """Our name of a weight; None if there is none.

    Example:
        >>> renamed("h.3.mlp.c_fc.bias", {"h.{}.mlp.c_fc": "layers.{}.feed_forward.up"})
        'layers.3.feed_forward.up.bias'
    """
    module, _, kind = LAYER.sub(".{}.", name).rpartition(".")
    if module not in names or kind not in ("weight", "bias"):
        return None
    return f"{names[module].format(*LAYER.findall(name))}.{kind}"
