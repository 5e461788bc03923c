"""Read OPUS-MT tokenizers: two SentencePiece models with the token ids of vocab.json.

target_vocab.json has the ids of the target, if it has its own. See docs/guides/import-export.md,
"Tokenizers".
"""

import re
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken

from qkv.checkpoint.shards import inside, read_table
from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.sentencepiece_format import (
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    Piece,
    convert,
    read_model,
)
from qkv.text.tokenizer import Tokenizer

FILES = ("source.spm", "target.spm", "vocab.json")
TARGET_VOCAB = "target_vocab.json"  # only if each side has its own token ids
KINDS = {"<unk>": UNKNOWN, "</s>": CONTROL, "<s>": CONTROL, "<pad>": CONTROL}
LANGUAGE_CODE = re.compile(r">>[^<>\s]+<<")  # >>fra<<: the target language, before the text
MIN_SCORE = -1e4  # of pieces that only the other side has: any other segmentation is preferred


def read_marian_tokenizers(folder: Path, two_vocabularies: bool) -> dict[str, Tokenizer]:
    """{"source": ..., "target": ...}; the spec says whether each side has its own token ids."""
    target = TARGET_VOCAB if two_vocabularies else "vocab.json"
    return {
        "source": read_side(folder, "source.spm", "vocab.json"),
        "target": read_side(folder, "target.spm", target),
    }


def read_pieces(folder: Path, name: str) -> list[str]:
    """The pieces of a vocabulary file in the order of their ids."""
    ids = read_table(folder / name)
    if sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))) or "<unk>" not in ids:
        wrong = _("token ids are not 0, 1, 2, ..., or <unk> is missing")
        raise QkvError(folder / name, wrong, _("is the download complete?"))
    return sorted(ids, key=ids.__getitem__)


def read_side(folder: Path, name: str, vocabulary: str) -> Tokenizer:
    """A tokenizer with the segmentation of a SentencePiece model and the ids of a vocabulary."""
    inside(folder, name)  # refuses links out of the folder
    model = read_model(folder / name)
    if model.algorithm != UNIGRAM:
        raise QkvError(folder / name, _("is not a unigram model"), _("OPUS-MT models use unigram"))
    pieces = read_pieces(folder, vocabulary)
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == NORMAL}
    numbered = [
        Piece(text, scores.get(text, MIN_SCORE), KINDS.get(text, NORMAL)) for text in pieces
    ]
    core = convert(replace(model, pieces=tuple(numbered)))
    # Not special tokens: users type them. SentencePiece would split them into > > fra < <.
    core.add_tokens(
        [AddedToken(text, normalized=False) for text in pieces if LANGUAGE_CODE.fullmatch(text)]
    )
    return Tokenizer(core)
