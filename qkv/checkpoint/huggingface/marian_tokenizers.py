"""Read OPUS-MT tokenizers: two SentencePiece models with the token ids of vocab.json.

target_vocab.json has the ids of the target, if it has its own. See docs/convert.md, "Tokenizers".
"""

import re
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken

from qkv.checkpoint.shards import inside, read_table
from qkv.errors import QkvError
from qkv.messages import _
from qkv.text import sentencepiece_format
from qkv.text.tokenizer import Tokenizer

FILES = ("source.spm", "target.spm", "vocab.json")
TARGET_VOCAB = "target_vocab.json"  # only if each side has its own token ids
KINDS = {
    "<unk>": sentencepiece_format.UNKNOWN,
    "</s>": sentencepiece_format.CONTROL,
    "<s>": sentencepiece_format.CONTROL,
    "<pad>": sentencepiece_format.CONTROL,
}
LANGUAGE_CODE = re.compile(r">>[^<>\s]+<<")  # >>fra<<: the target language, before the text
MIN_SCORE = -1e4  # of pieces that only the other side has: any other segmentation is preferred


def read_marian_tokenizers(folder: Path, two_vocabularies: bool) -> dict[str, Tokenizer]:
    """{"source": ..., "target": ...}; the spec says whether each side has its own token ids."""
    vocabularies = {
        "source": "vocab.json",
        "target": TARGET_VOCAB if two_vocabularies else "vocab.json",
    }
    return {side: read_side(folder, f"{side}.spm", name) for side, name in vocabularies.items()}


def read_pieces(folder: Path, name: str) -> list[str]:
    """The pieces of a vocabulary file in the order of their ids."""
    ids = read_table(folder, name)
    if sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))) or "<unk>" not in ids:
        raise QkvError(
            folder / name,
            _("token ids are not 0, 1, 2, ..., or <unk> is missing"),
            _("is the download complete?"),
        )
    return sorted(ids, key=lambda piece: ids[piece])


def read_side(folder: Path, name: str, vocabulary: str) -> Tokenizer:
    """A tokenizer with the segmentation of a SentencePiece model and the ids of a vocabulary."""
    inside(folder, name)  # refuses links out of the folder
    model = sentencepiece_format.read_model(folder / name)
    if model.algorithm != sentencepiece_format.UNIGRAM:
        raise QkvError(folder / name, _("is not a unigram model"), _("OPUS-MT models use unigram"))
    pieces = read_pieces(folder, vocabulary)
    scores = {
        piece.text: piece.score
        for piece in model.pieces
        if piece.kind == sentencepiece_format.NORMAL
    }
    numbered = [
        sentencepiece_format.Piece(
            text, scores.get(text, MIN_SCORE), KINDS.get(text, sentencepiece_format.NORMAL)
        )
        for text in pieces
    ]
    core = sentencepiece_format.convert(replace(model, pieces=tuple(numbered)))
    # Not special tokens: users type them. SentencePiece would split them into > > fra < <.
    core.add_tokens(
        [AddedToken(text, normalized=False) for text in pieces if LANGUAGE_CODE.fullmatch(text)]
    )
    return Tokenizer(core)
