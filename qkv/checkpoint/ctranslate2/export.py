"""Export a model folder to CTranslate2, which runs it on a CPU without torch.

Writes model.bin (float32 or int8), vocabularies, tokenizers, and qkv.json with the metadata for
generate/ctranslate2_translator.py and generate/ctranslate2_generator.py. See
docs/guides/import-export.md.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from qkv.checkpoint.ctranslate2.folder import Metadata
from qkv.checkpoint.ctranslate2.int8 import WEIGHT_BITS, quantize_weights
from qkv.checkpoint.ctranslate2.parity import check_parity
from qkv.checkpoint.ctranslate2.spec import ctranslate2_model, unsupported_parts
from qkv.checkpoint.disk import refuse_not_installed, refuse_occupied
from qkv.checkpoint.durable import json_bytes, write_new_folder
from qkv.checkpoint.folder import TOKENIZERS
from qkv.checkpoint.load import load_folder
from qkv.checkpoint.loaded_model import LoadedModel
from qkv.checkpoint.parity import Conversion
from qkv.checkpoint.target_spec import refuse_unsupported
from qkv.errors import QkvError
from qkv.messages import N_, _
from qkv.text.special_tokens import decoder_start_id, generation_tokens
from qkv.text.tokenizer import Tokenizer

__all__ = ["export_ctranslate2"]

METADATA = "qkv.json"


def export_ctranslate2(
    folder: str | Path, out: str | Path, n_inputs: int = 8, int8: bool = False
) -> Conversion:
    """Convert a model folder to a CTranslate2 folder.

    Args:
        folder: The model folder.
        out: The new folder.
        n_inputs: Random inputs on which both are compared; 0: no comparison.
        int8: Quantize the weights to int8.
    """
    out = Path(out)
    refuse_occupied(out)
    loaded = load_folder(folder, as_stored=True)
    metadata = save_ctranslate2(out, loaded, int8)
    return (
        replace(loaded.metadata, family="ctranslate2", dtype=metadata["dtype"]),
        check_parity(loaded.model, out, metadata, n_inputs) if n_inputs else None,
    )


def save_ctranslate2(folder: str | Path, loaded: LoadedModel, int8: bool = False) -> Metadata:
    """Write a CTranslate2 folder, atomically; return the content of its qkv.json."""
    metadata = export_metadata(loaded, int8)
    model = filled_spec(loaded, metadata)
    model.validate()
    model.optimize()  # shared matrices are written once
    if int8:
        quantize_weights(model)

    def fill(scratch: Path) -> None:
        model.save(str(scratch))
        (scratch / METADATA).write_bytes(json_bytes(metadata, sort_keys=True))
        for name, tokenizer in loaded.tokenizers.items():
            tokenizer.save(scratch / TOKENIZERS[name])

    write_new_folder(Path(folder), fill)
    return metadata


def filled_spec(loaded: LoadedModel, metadata: Metadata) -> Any:
    """The CTranslate2 model specification with weights, vocabularies and special tokens."""
    spec = loaded.model.spec
    refuse_not_installed("ctranslate2")
    wrong = N_("CTranslate2 does not support {parts}")
    refuse_unsupported(list(unsupported_parts(spec)), wrong)
    weights = {
        name: weight.float().cpu().numpy() for name, weight in loaded.model.state_dict().items()
    }
    model, target = ctranslate2_model(spec, weights), tokenizer_of(loaded, "target")
    names = token_names(target, spec.vocab_size)
    assert spec.decoder is not None
    config = model.config
    config.layer_norm_epsilon = spec.decoder.layers[0].norm.eps
    config.bos_token, config.eos_token = names[metadata["bos"]], names[metadata["eos"]]
    config.unk_token = names[metadata["pad"] if target.unk_id is None else target.unk_id]
    if spec.encoder is None:
        model.register_vocabulary(names)
        return model
    config.decoder_start_token = names[metadata["bos"]]
    source = tokenizer_of(loaded, "source")
    model.register_source_vocabulary(token_names(source, spec.source_vocab_size or spec.vocab_size))
    model.register_target_vocabulary(names)
    return model


def export_metadata(loaded: LoadedModel, int8: bool) -> Metadata:
    """The content of qkv.json; the token ids are those of pipeline.Translator and Generator."""
    source, target = tokenizer_of(loaded, "source"), tokenizer_of(loaded, "target")
    spec = loaded.model.spec
    if source.eos_id is None or target.eos_id is None:
        raise QkvError(
            _("tokenizer"), _("no <eos> token"), _("CTranslate2 needs an end-of-sequence token")
        )
    pad = target.eos_id if target.pad_id is None else target.pad_id
    start = decoder_start_id(target, loaded.generation) if spec.encoder else target.bos_id
    metadata: Metadata = {
        "format": "qkv-ctranslate2-1",
        "dtype": "int8" if int8 else "float32",
        "max_len": spec.max_len,
        "kind": "translator" if spec.encoder else "generator",
        "bos": pad if start is None else start,
        "eos": target.eos_id,
        "pad": pad,
    }
    if int8:
        metadata["weight_bits"] = WEIGHT_BITS
    if spec.encoder is None:
        metadata |= asdict(generation_tokens(target, loaded.generation))
    return metadata


def token_names(tokenizer: Tokenizer, size: int) -> list[str]:
    """The token of each id; ids without a token, or with a duplicate one, are named <id 7>."""
    names: dict[str, int] = {}
    for id, piece in enumerate(tokenizer.tokens(range(size))):
        names[piece if piece and piece not in names else f"<id {id}>"] = id
    assert len(names) == size, "duplicate token names"
    return list(names)


def tokenizer_of(loaded: LoadedModel, side: str) -> Tokenizer:
    found = loaded.tokenizer(side)
    if found is None:
        raise QkvError(
            _("model folder"), _("no tokenizer.json"), _("CTranslate2 needs a vocabulary")
        )
    return found
