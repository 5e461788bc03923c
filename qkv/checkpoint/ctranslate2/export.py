"""Our models as CTranslate2 folders: the fastest way to run them on a CPU, without torch.

In: a model folder. Out: model.bin (float32 or int8), vocabularies, our tokenizers, and qkv.json with what our engines
(generate/ctranslate2_translator.py, generate/ctranslate2_generator.py) need to know. Told in docs/ctranslate2.md.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from qkv.checkpoint.ctranslate2.int8 import WEIGHT_BITS, quantize_weights
from qkv.checkpoint.ctranslate2.parity import check_parity
from qkv.checkpoint.ctranslate2.spec import refuse_inexpressible, their_model
from qkv.checkpoint.durable import write_new_folder
from qkv.checkpoint.folder import TOKENIZERS
from qkv.checkpoint.huggingface.export import as_json, refuse_not_installed, refuse_occupied
from qkv.checkpoint.load import load_folder
from qkv.checkpoint.loaded_model import LoadedModel, WeightsMetadata
from qkv.checkpoint.parity import Report
from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.special_tokens import decoder_start_id, generation_tokens
from qkv.text.tokenizer import Tokenizer

FACTS = "qkv.json"


def export_ctranslate2(
    folder: str | Path, out: str | Path, n_inputs: int = 8, int8: bool = False
) -> tuple[WeightsMetadata, Report | None]:
    """A model folder as one of CTranslate2's, and the comparison of both; 0 inputs: no comparison."""
    out = Path(out)
    refuse_occupied(out)
    loaded = load_folder(folder, as_stored=True)
    facts = save_ctranslate2(out, loaded, int8)
    return (
        replace(loaded.metadata, family="ctranslate2", dtype=facts["dtype"]),
        check_parity(loaded.model, out, facts, n_inputs) if n_inputs else None,
    )


def save_ctranslate2(folder: str | Path, loaded: LoadedModel, int8: bool = False) -> dict[str, Any]:
    """The folder with all its files, or none of it; what its qkv.json says comes back."""
    path, facts = Path(folder), facts_of(loaded, int8)
    theirs = described(loaded, facts)
    theirs.validate()
    theirs.optimize()  # matrices that are shared are written once
    if int8:
        quantize_weights(theirs)

    def fill(scratch: Path) -> None:
        theirs.save(str(scratch))
        (scratch / FACTS).write_bytes(as_json(facts))
        for name, tokenizer in loaded.tokenizers.items():
            tokenizer.save(scratch / TOKENIZERS[name])

    write_new_folder(path, fill)
    return facts


def described(loaded: LoadedModel, facts: dict[str, Any]) -> Any:
    """Their specification with weights, vocabularies and the names of the tokens that begin and end."""
    spec = loaded.model.spec
    refuse_not_installed("ctranslate2")
    refuse_inexpressible(spec)
    weights = {
        name: weight.float().cpu().numpy() for name, weight in loaded.model.state_dict().items()
    }
    theirs, target = their_model(spec, weights), tokenizer_of(loaded, "target")
    names = names_of(target, spec.vocab_size)
    assert spec.decoder is not None
    config = theirs.config
    config.layer_norm_epsilon = spec.decoder.layers[0].norm.eps
    config.bos_token, config.eos_token = names[facts["bos"]], names[facts["eos"]]
    config.unk_token = names[facts["pad"] if target.unk_id is None else target.unk_id]
    if spec.encoder is None:
        theirs.register_vocabulary(names)
        return theirs
    config.decoder_start_token = names[facts["bos"]]
    theirs.register_source_vocabulary(
        names_of(tokenizer_of(loaded, "source"), spec.source_vocab_size or spec.vocab_size)
    )
    theirs.register_target_vocabulary(names)
    return theirs


def facts_of(loaded: LoadedModel, int8: bool) -> dict[str, Any]:
    """What stands in qkv.json; the ids are those of pipeline.Translator and Generator."""
    source, target, spec = (
        tokenizer_of(loaded, "source"),
        tokenizer_of(loaded, "target"),
        loaded.model.spec,
    )
    if source.eos_id is None or target.eos_id is None:
        raise QkvError(
            _("tokenizer"), _("it has no <eos>"), _("CTranslate2 needs a token that ends a text")
        )
    pad = target.eos_id if target.pad_id is None else target.pad_id
    start = decoder_start_id(target, loaded.generation) if spec.encoder else target.bos_id
    facts = {
        "format": "qkv-ctranslate2-1",
        "dtype": "int8" if int8 else "float32",
        "max_len": spec.max_len,
        "kind": "translator" if spec.encoder else "generator",
        "bos": pad if start is None else start,
        "eos": target.eos_id,
        "pad": pad,
    }
    if int8:
        facts["weight_bits"] = WEIGHT_BITS
    return facts if spec.encoder else facts | asdict(generation_tokens(target, loaded.generation))


def names_of(tokenizer: Tokenizer, size: int) -> list[str]:
    """The name of each id: its piece; ids that have none, or that of another, are named by their number."""
    names: dict[str, int] = {}
    for id, piece in enumerate(tokenizer.tokens(range(size))):
        names[piece if piece and piece not in names else f"<id {id}>"] = id
    assert len(names) == size, "two ids of one name"
    return list(names)


def tokenizer_of(loaded: LoadedModel, side: str) -> Tokenizer:
    found = loaded.tokenizer(side)
    if found is None:
        raise QkvError(
            _("model folder"),
            _("no tokenizer.json"),
            _("CTranslate2 needs the names of all tokens"),
        )
    return found
