"""qkv.load reads other people's folders as it reads ours."""

import qkv
from qkv.checkpoint.convert import export_folder


def test_an_exported_translator_translates_from_their_folder_as_from_ours(
    digits, digit_pairs, tmp_path
):
    export_folder(digits, tmp_path / "marian", n_inputs=0)
    texts = [source for source, _ in digit_pairs(20, seed=5)]
    assert qkv.load(tmp_path / "marian")(texts, beam_size=1) == qkv.load(digits)(texts, beam_size=1)
