"""The built-in Chinese-English corpus: corpus.py draws the pairs, the other modules are its grammar and its lexicon."""

from qkv.data.builtin.corpus import NOTES_SENTENCES, Pair, builtin_pairs, compositions

__all__ = ["NOTES_SENTENCES", "Pair", "builtin_pairs", "compositions"]
