"""The sentence-transformers format: read and write modules.json and the pooling configuration.

See docs/guides/import-export.md, "Sentence embeddings".
"""

from pathlib import Path

from qkv.checkpoint.durable import json_bytes
from qkv.checkpoint.loaded_model import PoolingConfig, PoolingMode
from qkv.checkpoint.names import Fields
from qkv.checkpoint.shards import inside, read_json, read_table
from qkv.errors import QkvError
from qkv.messages import _, listed

MODES: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
MODULES = ("Transformer", "Pooling", "Normalize")


def read_pooling(folder: Path) -> PoolingConfig | None:
    """The pooling of modules.json; None if there is no such file."""
    modules = read_json(folder / "modules.json", {})
    if not modules:
        return None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise QkvError(folder / "modules.json", _("is not a list of modules"), "")
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if unsupported := sorted(set(kinds) - set(MODULES)):
        raise QkvError(
            folder / "modules.json",
            _("unsupported modules ({names})", names=listed(unsupported)),
            _("supported: {names}", names=listed(MODULES)),
        )
    length = read_table(folder / "sentence_bert_config.json", {}).get("max_seq_length")
    return PoolingConfig(
        read_mode(folder, modules[kinds.index("Pooling")]) if "Pooling" in kinds else "cls",
        "Normalize" in kinds,
        length if type(length) is int and length > 0 else None,
    )


def read_mode(folder: Path, module: Fields) -> PoolingMode:
    """cls, mean or max, from the pooling module's own config.json."""
    path = str(module.get("path", ""))
    inside(folder, path, "config.json")  # refuses paths out of the folder
    fields = read_table(folder / path / "config.json")
    modes = [mode for name, mode in MODES.items() if fields.get(name) is True]
    modes = modes or [mode for mode in MODES.values() if mode == fields.get("pooling_mode")]
    if len(modes) != 1:
        raise QkvError(
            folder / path / "config.json",
            _("{n_modes} supported pooling modes are set", n_modes=len(modes)),
            _("set exactly one of {names}", names=listed(MODES)),
        )
    return modes[0]


def pooling_files(pooling: PoolingConfig, d_model: int) -> dict[str, bytes]:
    """modules.json and its configuration files, for sentence-transformers."""
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(MODULES if pooling.normalize else MODULES[:2])
    ]
    modes: Fields = {name: mode == pooling.pooling for name, mode in MODES.items()}
    files: Fields = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": d_model, **modes},
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
        "sentence_bert_config.json": {"max_seq_length": pooling.max_len, "do_lower_case": False},
    }
    return {name: json_bytes(content) for name, content in files.items()}
