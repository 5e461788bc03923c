"""sentence-transformers' layout: modules.json says how token vectors become one vector of a sentence.

In: a folder of theirs. Out: the pooling, whether vectors are brought to length one, how many tokens are read; and the
same files written. Told in docs/convert.md, "Sentence vectors".
"""

import json
from pathlib import Path
from typing import Any

from qkv.checkpoint.loaded_model import Mode, PoolingConfig
from qkv.checkpoint.shards import inside, read_json, read_table
from qkv.errors import QkvError
from qkv.messages import _, listed

MODES: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


def read_pooling(folder: Path) -> PoolingConfig | None:
    """The pooling that modules.json describes; None for a folder without it."""
    modules = read_json(folder, "modules.json", {})
    if not modules:
        return None
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise QkvError(folder / "modules.json", _("is no list of modules"), "")
    kinds = [str(one.get("type", "")).rsplit(".", 1)[-1] for one in modules]
    strange = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if strange:
        raise QkvError(
            folder / "modules.json",
            _("a module we do not have ({strange})", strange=listed(strange)),
            _("Transformer, Pooling and Normalize can be imported"),
        )
    places = [
        str(one.get("path", ""))
        for one, kind in zip(modules, kinds, strict=True)
        if kind == "Pooling"
    ]
    length = read_table(folder, "sentence_bert_config.json", {}).get("max_seq_length")
    return PoolingConfig(
        read_mode(folder, places[0]) if places else "cls",
        "Normalize" in kinds,
        length if type(length) is int and length > 0 else None,
    )


def read_mode(folder: Path, place: str) -> Mode:
    """cls, mean or max, from the pooling module's own config.json."""
    inside(folder, place, "config.json")  # no way out of the folder
    fields = read_table(folder / place, "config.json")
    modes = [ours for theirs, ours in MODES.items() if fields.get(theirs) is True]
    modes = modes or [mode for mode in MODES.values() if mode == fields.get("pooling_mode")]
    if len(modes) != 1:
        raise QkvError(
            folder / place / "config.json",
            _("{n_modes} ways of pooling that we know", n_modes=len(modes)),
            _("exactly one of ") + ", ".join(MODES),
        )
    return modes[0]


def pooling_files(pooling: PoolingConfig, d_model: int) -> dict[str, bytes]:
    """modules.json and what belongs to it, for a folder that sentence-transformers loads."""
    kinds = (
        ["Transformer", "Pooling", "Normalize"] if pooling.normalize else ["Transformer", "Pooling"]
    )
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    modes: dict[str, Any] = {theirs: ours == pooling.pooling for theirs, ours in MODES.items()}
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": d_model, **modes},
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
        "sentence_bert_config.json": {"max_seq_length": pooling.max_len, "do_lower_case": False},
    }
    return {
        name: (json.dumps(content, indent=2) + "\n").encode() for name, content in files.items()
    }
