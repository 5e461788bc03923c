"""A tokenizer as llama.cpp rebuilds it: pieces, their kinds, and merges or scores; nothing else of it is told.

In: our tokenizer. Out: the fields of a GGUF file under which llama.cpp cuts every text as we do; or one line that says
what it cannot do. Told in docs/gguf.md, "Tokenizers".
"""

from collections.abc import Iterator
from typing import Any

from qkv.checkpoint.loaded_model import LoadedModel
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.text.ranks import PATTERNS
from qkv.text.special_tokens import SpecialTokenIds, generation_tokens
from qkv.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6  # llama.cpp's kinds of pieces
SPACE = "▁"
BYTES = [
    f"<0x{byte:02X}>" for byte in range(256)
]  # what SentencePiece calls a byte that no piece holds
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
# How llama.cpp names the patterns that cut a text before the merges.
CUTS = {PATTERNS["r50k"]: "gpt-2", PATTERNS["cl100k"]: "llama-bpe"}


def add_tokenizer(writer: Any, loaded: LoadedModel, size: int) -> None:
    """All that a file says about its vocabulary of `size` ids."""
    tokenizer = loaded.tokenizers.get("tokenizer")
    if tokenizer is None:
        raise QkvError(_("model folder"), _("no tokenizer.json"), _("llama.cpp needs one"))
    if "ByteLevel" in str(tokenizer.rules["decoder"]):
        add_byte_level(writer, tokenizer)
    else:
        add_sentencepiece(writer, tokenizer, size)
    pieces = names_of(tokenizer, size)
    writer.add_token_list(pieces)
    writer.add_token_types(kinds_of(tokenizer, size))
    add_special(writer, tokenizer, loaded.generation)


def names_of(tokenizer: Tokenizer, size: int) -> list[str]:
    """A piece for each id; ids of the model that the tokenizer does not have get a name that no text contains."""
    return [piece or f"[PAD{id}]" for id, piece in enumerate(tokenizer.tokens(range(size)))]


def kinds_of(tokenizer: Tokenizer, size: int) -> list[int]:
    special, model = set(tokenizer.special_ids.values()), tokenizer.rules["model"]
    kinds = [
        CONTROL if id in special else NORMAL if piece else UNUSED
        for id, piece in enumerate(tokenizer.tokens(range(size)))
    ]
    if model.get("byte_fallback"):
        for byte in BYTES:
            kinds[model["vocab"][byte]] = BYTE
    if tokenizer.unk_id is not None:
        kinds[tokenizer.unk_id] = UNKNOWN
    return kinds


def add_special(writer: Any, tokenizer: Tokenizer, stored: SpecialTokenIds) -> None:
    """The special token ids, and whether bos is put before every prompt."""
    known = generation_tokens(tokenizer, stored)
    if len(known.begin) > 1:
        refuse([_("several tokens before every text")])
    start = tokenizer.bos_id if stored.start_id is None else stored.start_id
    ids = {
        "bos": known.begin[0] if known.begin else start,
        "eos": known.ends[0] if known.ends else None,
        "unk": tokenizer.unk_id,
        "pad": tokenizer.pad_id if stored.pad_id is None else stored.pad_id,
    }
    for role, id in ids.items():
        if id is not None:
            getattr(writer, f"add_{role}_token_id")(id)
    writer.add_add_bos_token(bool(known.begin))
    writer.add_add_eos_token(False)


# ── Byte-level BPE ───────────────────────────────────────────────────────────────────────────────────────────────
def add_byte_level(writer: Any, tokenizer: Tokenizer) -> None:
    """GPT-2's kind: bytes, a pattern that cuts, an ordered list of merges."""
    rules = tokenizer.rules
    cut = cut_of(rules["pre_tokenizer"])
    wrong = list(plain_faults(tokenizer))
    if cut is None:
        wrong.append(_("its way to cut text into words"))
    elif bool(rules["model"].get("ignore_merges")) != (cut == "llama-bpe"):
        wrong.append(f"ignore_merges {rules['model'].get('ignore_merges')}")
    refuse(wrong)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_merges([" ".join(pair) for pair in merges_of(rules)])


def cut_of(rule: dict[str, Any] | None) -> str | None:
    """llama.cpp's name for a pre-tokenizer, if it has one."""
    rule = rule or {}
    if all(rule.get(name) == value for name, value in BYTE_LEVEL.items()):
        return "gpt-2"
    steps = rule.get("pretokenizers", [])
    if (
        [step["type"] for step in steps] != ["Split", "ByteLevel"]
        or steps[1]["use_regex"]
        or steps[1]["add_prefix_space"]
    ):
        return None
    return (
        CUTS.get(steps[0]["pattern"].get("Regex", ""))
        if steps[0]["behavior"] == "Isolated"
        else None
    )


# ── SentencePiece's BPE ──────────────────────────────────────────────────────────────────────────────────────────
def add_sentencepiece(writer: Any, tokenizer: Tokenizer, size: int) -> None:
    """Llama 2's kind: the neighbours whose union scores highest are merged; what is left is spelled in bytes."""
    rules, wrong = tokenizer.rules, list(plain_faults(tokenizer))
    begins = space_before(rules)
    if begins is None:
        wrong.append(_("its way to treat spaces"))
    if not rules["model"].get("byte_fallback") or any(
        byte not in rules["model"]["vocab"] for byte in BYTES
    ):
        wrong.append(_("a vocabulary without bytes"))
    refuse(wrong)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_add_space_prefix(begins)
    writer.add_token_scores(scores_of(rules, size))


def space_before(rules: dict[str, Any]) -> bool | None:
    """Whether a space is put before every text; None where spaces are treated in another way than llama.cpp's."""
    steps = (rules["normalizer"] or {}).get(
        "normalizers", [rules["normalizer"]] if rules["normalizer"] else []
    )
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if rules["pre_tokenizer"] is not None or not steps or steps[-1] != replaced:
        return None
    return {(): False, ("Prepend",): True}.get(tuple(step["type"] for step in steps[:-1]))


def scores_of(rules: dict[str, Any], size: int) -> list[float]:
    """A piece that is merged earlier scores higher; pieces whose merges stand mixed score alike (Llama 2's long spaces)."""
    ids, merges, scores = rules["model"]["vocab"], merges_of(rules), [0.0] * size
    for number, tied in enumerate(ties(merges)):
        alike = {a + b for a, b in tied}
        if len(alike) > 1 and tied != sorted(tied, key=lambda pair: (ids[pair[0]], ids[pair[1]])):
            refuse([_("merges that are not in the order of scores")])
        for piece in alike:
            scores[ids[piece]] = -float(number + 1)
    known = set(merges)
    cuts = {
        (piece[:i], piece[i:]) for piece in {a + b for a, b in merges} for i in range(1, len(piece))
    }
    if any(
        a in ids and b in ids and (a, b) not in known for a, b in cuts
    ):  # llama.cpp would merge these too
        refuse([_("merges that leave out a way to a piece")])
    return scores


def ties(merges: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """The merges in the smallest groups that hold all merges of each of their pieces."""
    last = {a + b: rank for rank, (a, b) in enumerate(merges)}
    start = end = 0
    for rank, (a, b) in enumerate(merges):
        end = max(end, last[a + b])
        if rank == end:
            yield merges[start : end + 1]
            start = end = end + 1


# ── What neither can say ─────────────────────────────────────────────────────────────────────────────────────────
def plain_faults(tokenizer: Tokenizer) -> Iterator[str]:
    rules, model = tokenizer.rules, tokenizer.rules["model"]
    if model["type"] != "BPE":
        yield f"model {model['type']}"
        return
    if model.get("end_of_word_suffix") or model.get("continuing_subword_prefix"):
        yield f"{model.get('end_of_word_suffix') or model.get('continuing_subword_prefix')}"
    if tokenizer.adds_prefix_space:
        yield _("add_prefix_space (train with add_prefix_space: false)")
    elif "ByteLevel" in str(rules["decoder"]) and rules["normalizer"]:
        yield f"normalizer {rules['normalizer']['type']}"
    plain = [token["content"] for token in rules["added_tokens"] if not token["special"]]
    if plain:
        yield _("added words ({plain})", plain=listed(plain[:5]))


def merges_of(rules: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs; old files write them as one string."""
    pairs = (
        pair.split(" ") if isinstance(pair, str) else pair for pair in rules["model"]["merges"]
    )
    return [(a, b) for a, b in pairs]


def refuse(parts: list[str]) -> None:
    if parts:
        raise QkvError(
            "tokenizer.json",
            _("llama.cpp has no way to say {parts}", parts=listed(parts)),
            _("it knows byte-level BPE (GPT-2's and Llama 3's) and SentencePiece's BPE with bytes"),
        )
