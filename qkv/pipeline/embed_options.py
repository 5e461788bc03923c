"""Options of the embedder: pooling, normalization, dimensions and truncation.

See docs/guides/embeddings.md.
"""

from dataclasses import dataclass

from qkv.arguments import check_types
from qkv.errors import QkvError, near_miss
from qkv.limits import MAX_BATCH_SIZE, NumberRange, check_limits
from qkv.messages import _
from qkv.model.check_spec import MAX_WIDTH
from qkv.model.pooling import POOLINGS

__all__ = ["EmbedOptions"]

TRUNCATIONS = ("truncate", "chunk")
EMBED_LIMITS = {
    "dimensions": NumberRange(1, MAX_WIDTH),  # at most d_model: `check`
    "batch_size": NumberRange(1, MAX_BATCH_SIZE),
}


@dataclass(frozen=True)
class EmbedOptions:
    """Options of Embedder; None: the value stored with the model.

    >>> EmbedOptions(pooling="cls", dimensions=64).truncation
    'truncate'

    Attributes:
        pooling: cls, mean or max.
        normalize: Whether to L2-normalize the vectors.
        dimensions: Keep only the first dimensions (Matryoshka).
        truncation: For texts beyond the maximum length: truncate them, or split them into chunks
            and average the vectors (chunk).
        batch_size: The maximum number of texts per batch.
    """

    pooling: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    truncation: str = "truncate"
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_types(self)
        check_limits(self, EMBED_LIMITS)

    def check(self, d_model: int) -> None:
        """Check the options against a model.

        Args:
            d_model: The width of the model.

        Raises:
            QkvError: An option is invalid.
        """
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise QkvError(
                "pooling",
                _("no pooling '{pooling}'", pooling=self.pooling),
                near_miss(self.pooling, POOLINGS),
            )
        if self.truncation not in TRUNCATIONS:
            raise QkvError(
                "truncation",
                _("no truncation '{truncation}'", truncation=self.truncation),
                near_miss(self.truncation, TRUNCATIONS),
            )
        if self.dimensions is not None and self.dimensions > d_model:
            raise QkvError(
                "dimensions",
                _("{dimensions} of {d_model}", dimensions=self.dimensions, d_model=d_model),
                _("use 1 to {d_model}", d_model=d_model),
            )
