"""qkv.load reads Hugging Face folders as it reads qkv folders."""

import qkv
from qkv.checkpoint.convert import export_folder


def test_an_exported_translator_translates_as_the_original(digits, digit_pairs, tmp_path):
    export_folder(digits, tmp_path / "marian", n_inputs=0)
    texts = [source for source, _ in digit_pairs(20, seed=5)]
    assert qkv.load(tmp_path / "marian")(texts, beam_size=1) == qkv.load(digits)(texts, beam_size=1)
