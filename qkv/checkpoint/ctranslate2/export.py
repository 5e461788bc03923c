"""Our models as CTranslate2 folders: the fastest way to run them on a CPU, without torch.

In: a model folder. Out: model.bin (float32 or int8), vocabularies, our tokenizers, and qkv.json with what our engines
(generate/ctranslate2_translator.py, generate/ctranslate2_generator.py) need to know. Told in docs/ctranslate2.md.
"""

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qkv.checkpoint import disk
from qkv.checkpoint.convert import with_extras
from qkv.checkpoint.ctranslate2.int8 import WEIGHT_BITS, quantize_weights
from qkv.checkpoint.ctranslate2.parity import check_parity
from qkv.checkpoint.ctranslate2.spec import refuse_inexpressible, their_model
from qkv.checkpoint.folder import TOKENIZERS, LoadedModel, load_model
from qkv.checkpoint.huggingface.export import as_json, refuse_occupied
from qkv.checkpoint.parity import Report
from qkv.errors import QkvError
from qkv.language import say
from qkv.text.marks import marks_of, start_mark
from qkv.text.tokenizer import Tokenizer

FACTS = "qkv.json"


def export_ctranslate2(
    folder: str | Path, out: str | Path, n_inputs: int = 8, int8: bool = False
) -> tuple[dict[str, Any], Report | None]:
    """Our folder as one of CTranslate2's, and the proof that both say the same; 0 inputs: no proof."""
    folder, out = Path(folder), Path(out)
    refuse_occupied(out)
    loaded = with_extras(load_model(folder), folder)
    facts = save_ctranslate2(out, loaded, int8)
    return (loaded.facts | {"family": "ctranslate2", "dtype": facts["dtype"]},
            check_parity(loaded.model, out, facts, n_inputs) if n_inputs else None)


def save_ctranslate2(folder: str | Path, loaded: LoadedModel, int8: bool = False) -> dict[str, Any]:
    """The folder with all its files, or none of it; what its qkv.json says comes back."""
    path, facts = Path(folder), facts_of(loaded, int8)
    theirs = described(loaded, facts)
    theirs.validate()
    theirs.optimize()  # matrices that are shared are written once
    if int8:
        quantize_weights(theirs)
    with disk.scratch(path) as scratch:
        theirs.save(str(scratch))
        disk.fill(scratch / FACTS, as_json(facts))
        for name, tokenizer in loaded.tokenizers.items():
            tokenizer.save(scratch / TOKENIZERS[name])
        for file in (*scratch.iterdir(), scratch):
            disk.sync(file)
        disk.put(scratch, path)
        disk.sync(path.parent)
    return facts


def described(loaded: LoadedModel, facts: dict[str, Any]) -> Any:
    """Their specification with weights, vocabularies and the names of the tokens that begin and end."""
    spec = loaded.model.spec
    refuse_not_installed()
    refuse_inexpressible(spec)
    weights = {name: weight.float().cpu().numpy() for name, weight in loaded.model.state_dict().items()}
    theirs, target = their_model(spec, weights), target_tokenizer(loaded)
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
    theirs.register_source_vocabulary(names_of(source_tokenizer(loaded), spec.source_vocab_size or spec.vocab_size))
    theirs.register_target_vocabulary(names)
    return theirs


def facts_of(loaded: LoadedModel, int8: bool) -> dict[str, Any]:
    """What stands in qkv.json; the ids are those of pipeline.Translator and Generator."""
    source, target, spec = source_tokenizer(loaded), target_tokenizer(loaded), loaded.model.spec
    if source.eos_id is None or target.eos_id is None:
        raise QkvError(say("tokenizer", "分词器"), say("it has no <eos>", "缺少 <eos>"),
                       say("CTranslate2 needs a token that ends a text", "CTranslate2 需要一个结束文本的词元"))
    pad = target.eos_id if target.pad_id is None else target.pad_id
    told = loaded.facts.get("generation") or {}
    start = start_mark(target, told) if spec.encoder else target.bos_id
    facts = {"format": "qkv-ctranslate2-1", "dtype": "int8" if int8 else "float32", "max_len": spec.max_len,
             "kind": "translator" if spec.encoder else "generator", "bos": pad if start is None else start, "eos": target.eos_id, "pad": pad}
    if int8:
        facts["weight_bits"] = WEIGHT_BITS
    return facts if spec.encoder else facts | asdict(marks_of(target, told))


def names_of(tokenizer: Tokenizer, size: int) -> list[str]:
    """The name of each id: its piece; ids that have none, or that of another, are named by their number."""
    names: dict[str, int] = {}
    for id, piece in enumerate(tokenizer.tokens(range(size))):
        names[piece if piece and piece not in names else f"<id {id}>"] = id
    assert len(names) == size, "two ids of one name"
    return list(names)


def source_tokenizer(loaded: LoadedModel) -> Tokenizer:
    return _tokenizer(loaded, "source")


def target_tokenizer(loaded: LoadedModel) -> Tokenizer:
    return _tokenizer(loaded, "target")


def _tokenizer(loaded: LoadedModel, side: str) -> Tokenizer:
    found = loaded.tokenizers.get("tokenizer") or loaded.tokenizers.get(side)
    if found is None:
        raise QkvError(say("model folder", "模型文件夹"), say("no tokenizer.json", "没有 tokenizer.json"),
                       say("CTranslate2 needs the names of all tokens", "CTranslate2 需要所有词元的名字"))
    return found


def refuse_not_installed() -> None:
    if find_spec("ctranslate2") is None:
        raise QkvError("ctranslate2", say("is not installed", "没有安装"), "pip install 'qkv[convert]'")
