"""Ours, also where an installed package brings tests of its own by the same name."""
