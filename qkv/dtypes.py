"""Names of number types: `bf16` means `bfloat16`, `fp32` means `float32`, in every option."""

ALIASES = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}


def canonical_dtype(name: str) -> str:
    """The torch name of a number type; an unknown name is returned unchanged.

    >>> canonical_dtype("bf16"), canonical_dtype("float32")
    ('bfloat16', 'float32')
    """
    return ALIASES.get(name, name)
