"""`python -m qkv` runs the command line; torchrun needs this form."""

from qkv.cli import main

main()
