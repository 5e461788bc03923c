"""The tokenizer in a GGUF file: tokens, token types, and merges or scores.

A tokenizer that llama.cpp would apply differently is an error. See docs/guides/import-export.md,
"Tokenizers".
"""

from collections.abc import Iterator
from typing import Any

from qkv.checkpoint.loaded_model import LoadedModel
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.text.special_tokens import SpecialTokenIds, generation_tokens
from qkv.text.tiktoken_format import PATTERNS
from qkv.text.tokenizer import Tokenizer

Rules = dict[str, Any]  # tokenizer.json, or a part of it
NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6  # token types of llama.cpp
REPLACE_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]  # SentencePiece's byte fallback
# llama.cpp's names of the pre-tokenization patterns.
PRE_TOKENIZERS = {PATTERNS["r50k"]: "gpt-2", PATTERNS["cl100k"]: "llama-bpe"}


def add_tokenizer(gguf_writer: Any, loaded: LoadedModel, size: int) -> None:
    """Write the tokenizer metadata for a vocabulary of `size` ids."""
    tokenizer = loaded.tokenizers.get("tokenizer")
    if tokenizer is None:
        raise QkvError(_("model folder"), _("no tokenizer.json"), _("llama.cpp needs one"))
    if "ByteLevel" in str(tokenizer.config["decoder"]):
        add_byte_level(gguf_writer, tokenizer)
    else:
        add_sentencepiece(gguf_writer, tokenizer, size)
    pieces = tokenizer.tokens(range(size))  # ids that only the model has are named [PAD7]
    gguf_writer.add_token_list([piece or f"[PAD{id}]" for id, piece in enumerate(pieces)])
    gguf_writer.add_token_types(token_types(tokenizer, pieces))
    add_special(gguf_writer, tokenizer, loaded.generation)


def token_types(tokenizer: Tokenizer, pieces: list[str]) -> list[int]:
    special, model = set(tokenizer.special_ids.values()), tokenizer.config["model"]
    kinds = [
        CONTROL if id in special else NORMAL if piece else UNUSED for id, piece in enumerate(pieces)
    ]
    if model.get("byte_fallback"):
        for byte in BYTE_TOKENS:
            kinds[model["vocab"][byte]] = BYTE
    if tokenizer.unk_id is not None:
        kinds[tokenizer.unk_id] = UNKNOWN
    return kinds


def add_special(gguf_writer: Any, tokenizer: Tokenizer, stored: SpecialTokenIds) -> None:
    """The special token ids, and whether bos is put before every prompt."""
    known = generation_tokens(tokenizer, stored)
    if len(known.begin) > 1:
        refuse_unsupported([_("more than one token before the text")])
    start = tokenizer.bos_id if stored.start_id is None else stored.start_id
    ids = {
        "bos": known.begin[0] if known.begin else start,
        "eos": known.ends[0] if known.ends else None,
        "unk": tokenizer.unk_id,
        "pad": tokenizer.pad_id if stored.pad_id is None else stored.pad_id,
    }
    for role, id in ids.items():
        if id is not None:
            getattr(gguf_writer, f"add_{role}_token_id")(id)
    gguf_writer.add_add_bos_token(bool(known.begin))
    gguf_writer.add_add_eos_token(False)


# ── Byte-level BPE ──────────────────────────────────────────────────────────────────────────────
def add_byte_level(gguf_writer: Any, tokenizer: Tokenizer) -> None:
    """GPT-2's tokenizer: bytes, a pre-tokenization pattern, an ordered list of merges."""
    rules = tokenizer.config
    ignore_merges = rules["model"].get("ignore_merges")
    pre_tokenizer = pre_tokenizer_name(rules["pre_tokenizer"])
    unsupported = list(unsupported_parts(tokenizer))
    if pre_tokenizer is None:
        unsupported.append(_("this pre-tokenizer"))
    elif bool(ignore_merges) != (pre_tokenizer == "llama-bpe"):
        unsupported.append(f"ignore_merges {ignore_merges}")
    refuse_unsupported(unsupported)
    gguf_writer.add_tokenizer_model("gpt2")
    gguf_writer.add_tokenizer_pre(pre_tokenizer)
    gguf_writer.add_token_merges([" ".join(pair) for pair in merges_of(rules)])


def pre_tokenizer_name(rule: Rules | None) -> str | None:
    """llama.cpp's name of a pre-tokenizer; None if it has none."""
    match rule:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return "gpt-2"
        case {
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ]
        }:
            return PRE_TOKENIZERS.get(pattern)
    return None


# ── SentencePiece's BPE ─────────────────────────────────────────────────────────────────────────
def add_sentencepiece(gguf_writer: Any, tokenizer: Tokenizer, size: int) -> None:
    """Llama 2's tokenizer: the adjacent pair with the highest score is merged; byte fallback."""
    rules, unsupported = tokenizer.config, list(unsupported_parts(tokenizer))
    space_prefix = adds_space_prefix(rules)
    if space_prefix is None:
        unsupported.append(_("this handling of spaces"))
    if not rules["model"].get("byte_fallback") or any(
        byte not in rules["model"]["vocab"] for byte in BYTE_TOKENS
    ):
        unsupported.append(_("a vocabulary without byte tokens"))
    refuse_unsupported(unsupported)
    gguf_writer.add_tokenizer_model("llama")
    gguf_writer.add_tokenizer_pre("default")
    gguf_writer.add_add_space_prefix(space_prefix)
    gguf_writer.add_token_scores(scores_of(rules, size))


def adds_space_prefix(rules: Rules) -> bool | None:
    """Whether a space is added before the text; None if llama.cpp handles spaces differently."""
    match rules["pre_tokenizer"], rules["normalizer"]:
        case None, {"normalizers": [{"type": "Prepend"}, last]} if last == REPLACE_SPACES:
            return True
        case None, {"normalizers": [last]} | last if last == REPLACE_SPACES:
            return False
    return None


def scores_of(rules: Rules, size: int) -> list[float]:
    """The score of each token: earlier merges score higher.

    Tokens with interleaved merges have equal scores (Llama 2's runs of spaces).
    """
    ids, merges, scores = rules["model"]["vocab"], merges_of(rules), [0.0] * size
    for number, group in enumerate(merge_groups(merges)):
        tokens = {a + b for a, b in group}
        if len(tokens) > 1 and group != sorted(group, key=lambda p: (ids[p[0]], ids[p[1]])):
            refuse_unsupported([_("merges that are not ordered by score")])
        for token in tokens:
            scores[ids[token]] = -float(number + 1)
    known = set(merges)
    splits = {
        (token[:i], token[i:]) for token in {a + b for a, b in merges} for i in range(1, len(token))
    }
    # llama.cpp would also merge pairs that are not in the list.
    if any(a in ids and b in ids and (a, b) not in known for a, b in splits):
        refuse_unsupported([_("an incomplete list of merges")])
    return scores


def merge_groups(merges: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """The smallest groups of consecutive merges with all merges of each of their tokens."""
    last = {a + b: rank for rank, (a, b) in enumerate(merges)}
    start = end = 0
    for rank, (a, b) in enumerate(merges):
        end = max(end, last[a + b])
        if rank == end:
            yield merges[start : end + 1]
            start = end = end + 1


# ── Unsupported tokenizers ──────────────────────────────────────────────────────────────────────
def unsupported_parts(tokenizer: Tokenizer) -> Iterator[str]:
    """Parts of a tokenizer that llama.cpp does not support in either format."""
    rules, model = tokenizer.config, tokenizer.config["model"]
    if model["type"] != "BPE":
        yield f"model {model['type']}"
        return
    affix = model.get("end_of_word_suffix") or model.get("continuing_subword_prefix")
    if affix:
        yield affix
    if tokenizer.adds_prefix_space:
        yield _("add_prefix_space (train with add_prefix_space: false)")
    elif "ByteLevel" in str(rules["decoder"]) and rules["normalizer"]:
        yield f"normalizer {rules['normalizer']['type']}"
    added = [token["content"] for token in rules["added_tokens"] if not token["special"]]
    if added:
        yield _("added tokens that are not special ({names})", names=listed(added[:5]))


def merges_of(rules: Rules) -> list[tuple[str, str]]:
    """The merges as pairs; old files have strings."""
    pairs = (
        pair.split(" ") if isinstance(pair, str) else pair for pair in rules["model"]["merges"]
    )
    return [(a, b) for a, b in pairs]


def refuse_unsupported(parts: list[str]) -> None:
    if parts:
        raise QkvError(
            "tokenizer.json",
            _("llama.cpp does not support {parts}", parts=listed(parts)),
            _("use byte-level BPE (GPT-2, Llama 3) or SentencePiece BPE with byte fallback"),
        )
