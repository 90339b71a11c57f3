"""Reads what a training run left behind and says which layer is responsible, with the evidence."""

__version__ = "0.1.0"
