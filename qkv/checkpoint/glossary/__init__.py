"""The glossary: terms of the field with their names in qkv and in other checkpoints.

`qkv glossary` prints it, scripts/write_glossary.py writes docs/reference/glossary.md.
"""

from qkv.checkpoint.glossary.attention_weights import ATTENTION_WEIGHTS
from qkv.checkpoint.glossary.entry import Entry
from qkv.checkpoint.glossary.operations import OPERATIONS
from qkv.checkpoint.glossary.other_weights import (
    EMBEDDING_WEIGHTS,
    FEED_FORWARD_WEIGHTS,
    HEAD_WEIGHTS,
)
from qkv.checkpoint.glossary.processes import EVALUATION, INFERENCE, TOKENIZATION, TRAINING
from qkv.checkpoint.glossary.sizes import SIZES
from qkv.checkpoint.glossary.tensors import TENSORS
from qkv.messages import N_

__all__ = ["GLOSSARY", "WEIGHTS"]
WEIGHTS = (*EMBEDDING_WEIGHTS, *ATTENTION_WEIGHTS, *FEED_FORWARD_WEIGHTS, *HEAD_WEIGHTS)
# Kind of the terms (the JSON field `kind`) -> terms, in the order of the page.
GLOSSARY: dict[str, tuple[Entry, ...]] = {
    "size": SIZES,
    "weight": WEIGHTS,
    "tensor": TENSORS,
    "operation": OPERATIONS,
    "tokenization": TOKENIZATION,
    "training": TRAINING,
    "inference": INFERENCE,
    "evaluation": EVALUATION,
}
HEADINGS = {
    "size": N_("Sizes"),
    "weight": N_("Weights"),
    "tensor": N_("Tensors"),
    "operation": N_("Operations and architectures"),
    "tokenization": N_("Tokenization"),
    "training": N_("Training"),
    "inference": N_("Inference"),
    "evaluation": N_("Evaluation"),
}
