"""One term of the glossary, and the checkpoint formats whose names it has."""

from collections.abc import Iterator
from dataclasses import dataclass

from qkv.messages import translate

# Field of Entry -> heading.
FORMATS = {
    "huggingface": "Hugging Face",
    "gpt2": "GPT-2",
    "llama": "Llama",
    "gguf": "llama.cpp",
    "bert": "BERT",
    "marian": "Marian, BART",
}
LAYER = "decoder.layers.N."  # N is the index of a layer, E that of an expert
LAYER_PREFIXES = {
    "huggingface": "model.layers.N.",
    "gpt2": "transformer.h.N.",
    "llama": "layers.N.",
    "gguf": "blk.N.",
    "bert": "bert.encoder.layer.N.",
    "marian": "model.decoder.layers.N.",
}


@dataclass(frozen=True)
class Entry:
    """A term with its names; names in other formats are separated by commas.

    The names of a layer's weights begin with the format's prefix of a layer, which is left out.
    """

    term: str  # English; its translation is the Chinese term
    meaning: str
    symbol: str = ""
    shape: str = ""  # of weights as stored: a linear map is (out, in)
    name: str = ""  # of a weight or tensor: its module path; otherwise its path inside qkv
    huggingface: str = ""  # Llama, Mistral, Qwen, Gemma, Mixtral and DeepSeek
    gpt2: str = ""
    llama: str = ""  # the files of the authors of Llama and Mixtral
    gguf: str = ""
    bert: str = ""
    marian: str = ""
    textbook: str = ""  # path inside qkv.textbook

    @property
    def chinese(self) -> str:
        return translate("zh", self.term)

    def names(self, format: str) -> list[str]:
        """The names in a format of FORMATS."""
        return [name for name in getattr(self, format).split(", ") if name]

    def full_names(self, format: str) -> list[str]:
        """The names in a format, with the prefix of a layer."""
        prefix = LAYER_PREFIXES[format] if self.name.startswith(LAYER) else ""
        return [prefix + name for name in self.names(format)]

    def all_names(self) -> Iterator[str]:
        """The English and the Chinese term, the symbol, and all names."""
        yield from (self.term, self.chinese, self.symbol, self.name)
        for format in FORMATS:
            yield from self.full_names(format)
