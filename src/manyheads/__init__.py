"""Attention for PyTorch that you can trust, see and afford."""

__version__ = "0.1.0"
