"""Write text with a model, one token after another."""

from manyheads.models.generation.beams import Beams, beam_search
from manyheads.models.generation.decoder_only import LanguageModel
from manyheads.models.generation.generate import generate
from manyheads.models.generation.sampling import Sampling
from manyheads.models.generation.speculative import Draft
from manyheads.models.generation.stop import Stop
from manyheads.models.generation.stream import Step, stream
from manyheads.models.generation.weights import assemble_weights

__all__ = [
    "Beams",
    "Draft",
    "LanguageModel",
    "Sampling",
    "Step",
    "Stop",
    "assemble_weights",
    "beam_search",
    "generate",
    "stream",
]
