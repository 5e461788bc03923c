"""What Translator and Generator share: loading a model folder, and access to the torch model.

This module does not import torch.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from qkv.generate.backend import torch_model

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import LoadedModel
    from qkv.model.transformer import Transformer


class TextPipeline(ABC):
    """A pipeline whose output is text; `backend` runs its model."""

    backend: Any  # SearchBackend or GenerationBackend

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", int8: bool = False) -> Self:
        """Load the pipeline of a model folder.

        Args:
            folder: A folder written by qkv or Hugging Face.
            device: A torch device, such as "cpu" or "cuda".
            int8: Whether to quantize the weight matrices to int8.

        Raises:
            QkvError: The folder is damaged or holds another kind of model.
        """
        from qkv.checkpoint.load import load_folder

        return cls.of(load_folder(folder, device), folder, int8)

    @classmethod
    @abstractmethod
    def of(cls, loaded: "LoadedModel", folder: str | Path, int8: bool = False) -> Self:
        """Make the pipeline of a loaded folder.

        Args:
            loaded: The model with its tokenizers.
            folder: The name of the folder in errors.
            int8: Whether to quantize the weight matrices to int8.

        Raises:
            QkvError: It is another kind of model.
        """

    @property
    def model(self) -> "Transformer":
        """The torch model; an error with the CTranslate2 backend."""
        return torch_model(self.backend)
