"""Train a model on a task, keep it, and measure how right it is.

Loading and measuring need torch alone; ``train`` needs the extra ``training``.
"""

from manyheads.training.checkpoint import Trained, load, save
from manyheads.training.evaluate import HeadMass, alignment_mass, exact_match
from manyheads.training.loss import token_loss
from manyheads.training.recipe import Recipe
from manyheads.training.schedule import WarmupCosine
from manyheads.training.threads import quickest_threads
from manyheads.training.train import small_config, train
from manyheads.training.weights import load_weights, plain_names

__all__ = [
    "HeadMass",
    "Recipe",
    "Trained",
    "WarmupCosine",
    "alignment_mass",
    "exact_match",
    "load",
    "load_weights",
    "plain_names",
    "quickest_threads",
    "save",
    "small_config",
    "token_loss",
    "train",
]
