"""The generated pages of docs/reference/, one module each, for write_reference.py."""
