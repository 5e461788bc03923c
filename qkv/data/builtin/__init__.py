"""The built-in Chinese-English corpus: `corpus` samples the pairs from a grammar and a lexicon."""

from qkv.data.builtin.corpus import DEMO_SENTENCES, Pair, builtin_pairs, compositions

__all__ = ["DEMO_SENTENCES", "Pair", "builtin_pairs", "compositions"]
