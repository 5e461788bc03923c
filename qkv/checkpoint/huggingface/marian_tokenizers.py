"""OPUS-MT's tokenizers: two SentencePiece models that cut the text, and one vocab.json that numbers the pieces.

In: source.spm, target.spm and vocab.json of a folder, with target_vocab.json where the target has numbers of its own.
Out: two of our tokenizers with the same numbers.
Told in docs/convert.md, "Tokenizers".
"""

import re
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken

from qkv.checkpoint.shards import inside, read_table
from qkv.errors import QkvError
from qkv.messages import _
from qkv.text import spm
from qkv.text.tokenizer import Tokenizer

FILES = ("source.spm", "target.spm", "vocab.json")
TARGET_LIST = "target_vocab.json"  # only where each side has numbers of its own
KINDS = {"<unk>": spm.UNKNOWN, "</s>": spm.CONTROL, "<s>": spm.CONTROL, "<pad>": spm.CONTROL}
CODE = re.compile(r">>[^<>\s]+<<")  # >>fra<<: the language to translate into, put before the text
NEVER = (
    -1e4
)  # the score of a piece that only the other language has: any other way to cut the text is better


def read_marian_tokenizers(folder: Path, two_vocabularies: bool) -> dict[str, Tokenizer]:
    """{"source": ..., "target": ...}; the model says whether each side has numbers of its own."""
    lists = {"source": "vocab.json", "target": TARGET_LIST if two_vocabularies else "vocab.json"}
    return {side: read_side(folder, f"{side}.spm", numbers) for side, numbers in lists.items()}


def read_pieces(folder: Path, name: str) -> list[str]:
    """The pieces of a list, in the order of their numbers."""
    ids = read_table(folder, name)
    if sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))) or "<unk>" not in ids:
        raise QkvError(
            folder / name,
            _("does not number its pieces from 0 on, with <unk> among them"),
            _("is the download complete?"),
        )
    return sorted(ids, key=lambda piece: ids[piece])


def read_side(folder: Path, name: str, numbers: str) -> Tokenizer:
    """The cutting of one model with the numbers of a list."""
    inside(folder, name)  # no link leads out
    model = spm.read_model(folder / name)
    if model.algorithm != spm.UNIGRAM:
        raise QkvError(
            folder / name, _("is not a unigram model"), _("OPUS-MT's are; is it one of them?")
        )
    pieces = read_pieces(folder, numbers)
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == spm.NORMAL}
    numbered = [
        spm.Piece(text, scores.get(text, NEVER), KINDS.get(text, spm.NORMAL)) for text in pieces
    ]
    core = spm.convert(replace(model, pieces=tuple(numbered)))
    # Not special: a person types them. Only the list knows them, SentencePiece would cut them into > > fra < <.
    core.add_tokens([AddedToken(text, normalized=False) for text in pieces if CODE.fullmatch(text)])
    return Tokenizer(core)
