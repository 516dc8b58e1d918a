"""Arithmetic that no autocast rounds."""

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """No autocast inside of this."""
    # Tensors on the meta device have no numbers to round, and torch no autocast for them.
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()
