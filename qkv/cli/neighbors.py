"""`qkv neighbors`: words of similar vectors, and differences of word vectors.

See docs/guides/inspect.md, "Word vectors".
"""

from typing import TYPE_CHECKING

from qkv.cli.options import Folder, Json
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.errors import QkvError, near_miss
from qkv.limits import NumberRange
from qkv.messages import _, listed

if TYPE_CHECKING:
    from qkv.explore.explored_model import ExploredModel


def neighbors(
    folder: Folder,
    word: str = argument(..., "a word that is one token"),
    minus: list[str] = option([], "subtract the vector of this word; may be repeated", "--minus"),
    plus: list[str] = option([], "add the vector of this word; may be repeated", "--plus"),
    k: int = option(10, "number of tokens", "-k", limit=NumberRange(1, 1000)),
    side: str | None = option(None, "vocabulary of a translation model: source or target"),
    as_json: Json = False,
) -> None:
    """Print the tokens nearest to a word, or to word - W + W, by cosine of their embeddings."""
    from qkv.cli.explore import open_explorer
    from qkv.explore.embeddings import nearest_to_sum

    explored = open_explorer(folder).explored
    side = next(iter(explored.tokenizers)) if side is None else side
    if side not in explored.tokenizers:
        wrong = _("this model has no side '{side}'", side=side)
        raise QkvError("--side", wrong, near_miss(side, explored.tokenizers))
    added = [
        _token(explored, side, "WORD", word),
        *(_token(explored, side, "--plus", w) for w in plus),
    ]
    subtracted = [_token(explored, side, "--minus", w) for w in minus]
    rows = nearest_to_sum(explored, side, added, subtracted, k)
    if as_json:
        print_json({"side": side, "plus": added, "minus": subtracted, "neighbors": rows})
    else:
        for row in rows:
            print(f"{row['cosine']:7.4f}  {row['token']}")


def _token(explored: "ExploredModel", side: str, where: str, word: str) -> int:
    """The id of a word that is one token, at the beginning of a text or after a space."""
    found = [explored.encode_plain(text, side) for text in (word, f" {word}" if word else "")]
    for ids in found:
        if len(ids) == 1:
            return ids[0]
    tokens = explored.display_tokens(found[0], side)
    wrong = _("'{word}' is {n} tokens ({tokens})", word=word, n=len(tokens), tokens=listed(tokens))
    raise QkvError(where, wrong, _("give a word that is one token"))
