"""qkv: the Transformer as one piece of software."""

__version__ = "0.1.0"
