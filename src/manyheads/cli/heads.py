"""Where a trained model looks while it writes: the weights of all heads with their tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import OptionError
from manyheads.tasks.vocabulary import BOS_ID
from manyheads.training import Trained

BEGIN, END = "<s>", "</s>"


@dataclass(frozen=True)
class Sight:
    """What every head saw while a model read one text and wrote one answer.

    Args:
        answer: What the model wrote.
        weights: (heads, q_len, kv_len) by the name of an attention.
        queries: For each attention its queries' tokens. A row of the decoder is named after the
            character that it writes.
        keys: For each attention its keys' tokens.
    """

    answer: str
    weights: dict[str, Tensor]
    queries: dict[str, list[str]]
    keys: dict[str, list[str]]


def look_at(trained: Trained, text: str) -> Sight:
    """Let a model answer one text, and see all of its heads while it does.

    Raises:
        OptionError: If the text is empty or holds characters that the model does not know.
    """
    if not text:
        raise OptionError("text must hold at least one character; got ''. Give a text to read.")
    (answer,) = trained.write([text])
    source = torch.tensor([trained.source_vocabulary.encode(text)])
    target = torch.tensor([[BOS_ID, *trained.target_vocabulary.encode(answer)]])
    with torch.no_grad():
        _, batched = trained.model.with_weights(source, target)
    weights = {name: each[0] for name, each in batched.items()}
    read, written = list(text), [*answer, END]
    # What stands in the decoder's stream is one step behind what it writes.
    stream = [BEGIN, *answer]
    return Sight(
        answer=answer,
        weights=weights,
        queries={name: read if name.startswith("encoder") else written for name in weights},
        keys={name: stream if name.endswith("self") else read for name in weights},
    )
