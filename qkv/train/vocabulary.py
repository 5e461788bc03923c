"""The tokenizer of a run: learned once from its text, then kept.

In: what the recipe asks for and the texts. Out: a Tokenizer, the same one whenever the run goes on.
Told in docs/training.md, "Your own files".
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.learn import learn
from qkv.text.lines import write_text
from qkv.text.pipeline import Choices
from qkv.text.tokenizer import Tokenizer

NOTE = ".from"  # tokenizer.from tells from what tokenizer.json was learned
PREFIX_SPACE = "add_prefix_space"
BEGIN_AND_END = Choices(special_tokens=("<bos>", "<eos>"))  # WordPiece has none of its own


def kept_tokenizer(
    path: Path,
    kind: str,
    vocab_size: int,
    texts: Iterable[str],
    checksums: Sequence[str],
    resume: bool,
    choices: Choices = BEGIN_AND_END,
) -> Tokenizer:
    """Learned once and kept: a resumed run reads what it read before, a new one only what it would learn itself."""
    wishes: dict[str, object] = {
        "kind": kind,
        "vocab_size": vocab_size,
        PREFIX_SPACE: choices.add_prefix_space,
    }
    if repr(choices) != repr(BEGIN_AND_END):
        wishes["choices"] = repr(choices)
    note, asked = path.with_suffix(NOTE), json.dumps({**wishes, "texts": list(checksums)})
    found = note.read_text(encoding="utf-8") if note.is_file() else None
    if resume and found is not None:
        _refuse_other(json.loads(found), wishes)
    if path.is_file() and (resume or found == asked):
        return Tokenizer.load(path)
    note.unlink(missing_ok=True)
    tokenizer = _learned(kind, vocab_size, texts, choices)
    tokenizer.save(path)
    write_text(note, asked)  # after the tokenizer: it vouches for it
    return tokenizer


def run_choices(kind: str, add_prefix_space: bool) -> Choices:
    """The choices of a run; only bytes need the prefix space, the other kinds mark words by themselves."""
    return replace(BEGIN_AND_END, add_prefix_space=add_prefix_space and kind == "bytes")


def _refuse_other(noted: dict[str, object], wishes: dict[str, object]) -> None:
    """A resumed run keeps its tokenizer, so the recipe must still ask for that one; old notes do not tell the prefix space."""
    noted = {PREFIX_SPACE: wishes[PREFIX_SPACE], **noted}
    if any(noted.get(name) != wish for name, wish in wishes.items()):
        wrong = _("the run learned another tokenizer")
        raise QkvError(
            "tokenizer, vocab_size", wrong, _("leave both as they were, or choose another --out")
        )


def keep_given(path: Path, tokenizer: Tokenizer) -> None:
    """A tokenizer that was given, not learned; a note from before would vouch for it as if it had been."""
    path.with_suffix(NOTE).unlink(missing_ok=True)
    tokenizer.save(path)


def _learned(kind: str, vocab_size: int, texts: Iterable[str], choices: Choices) -> Tokenizer:
    try:
        tokenizer = learn(kind, texts, vocab_size, choices)
    except QkvError as error:
        where = {"--vocab-size": "vocab_size", "--kind": "tokenizer"}.get(error.where, error.where)
        raise QkvError(where, error.wrong, error.right) from None
    # Words and characters are what there is; merges were asked for by number and must not silently be fewer.
    if kind not in ("word", "char") and tokenizer.vocab_size < vocab_size:
        found = tokenizer.vocab_size
        wrong = _(
            "this text supports only {found:,} pieces, not {vocab_size:,}",
            found=found,
            vocab_size=vocab_size,
        )
        raise QkvError("vocab_size", wrong, _("use at most {found:,}", found=found))
    return tokenizer
