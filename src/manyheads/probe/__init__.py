"""Observe any model's attention calls."""

from manyheads.probe.call import AttentionCall
from manyheads.probe.watch import watch

__all__ = ["AttentionCall", "watch"]
