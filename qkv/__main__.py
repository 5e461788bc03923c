"""`python -m qkv` is `qkv`; torchrun needs this form."""

from qkv.cli import main

main()
