"""The glossary's names are those of the name mappings, its shapes those of the models."""

import importlib
import re
from dataclasses import fields, is_dataclass, replace
from math import prod

import gguf
import pytest
import torch

from qkv.checkpoint.families import FAMILIES
from qkv.checkpoint.gguf.architectures import GPT2_ROWS, ROWS
from qkv.checkpoint.gguf.export import add_sizes
from qkv.checkpoint.glossary import GLOSSARY, WEIGHTS
from qkv.checkpoint.glossary.entry import LAYER_PREFIXES
from qkv.checkpoint.glossary.model_shapes import CONDITIONS, glossary_name, model_glossary, sizes_of
from qkv.checkpoint.weights import meta_model
from qkv.model import spec as s
from qkv.model.presets import preset
from qkv.model.shapes import shapes_of
from qkv.model.transformer import Transformer

BIASED = s.Attention(4, 4, 6, bias=True, out_bias=True)
GQA = s.Attention(4, 2, 6, qk_norm=True)
MLA = s.LatentAttention(3, 10, 7, 2, 5, q_lora_rank=11)
EXPERTS = s.MixtureOfExperts(9, 3, s.Gated(13), s.Gated(26), score_correction_bias=True)
DENSE = s.Dense(40, "gelu", bias=True)


def stack(mixer, feed_forward, repeat: int, causal: bool = True, **more) -> s.Stack:
    """Equal layers; causal ones have a final norm, the others an embedding norm."""
    layer = s.Layer(mixer, feed_forward, s.Norm("rms", "pre"), repeat=repeat, **more)
    return s.Stack((layer,), causal, final_norm=causal, embed_norm=not causal)


# All sizes of a model differ, so that a wrong name has another value.
LLAMA = s.Spec(101, 24, decoder=stack(GQA, s.Gated(40), 3), max_len=50, head=s.LmHead(tied=False))
MOE = replace(LLAMA, decoder=stack(GQA, EXPERTS, 3))
DEEPSEEK = replace(LLAMA, decoder=stack(MLA, EXPERTS, 8))
GPT2 = replace(LLAMA, decoder=stack(BIASED, DENSE, 3), positions=s.Learned())
BERT = s.Spec(
    101,
    24,
    encoder=stack(BIASED, DENSE, 3, causal=False),
    positions=s.Learned(),
    head=s.MaskedHead(),
    token_types=2,
    max_len=50,
)
MARIAN = s.Spec(
    101,
    24,
    stack(BIASED, DENSE, 3, causal=False),
    stack(BIASED, s.Dense(41, "gelu"), 5, cross=BIASED),
    positions=s.Sinusoidal("halves"),
    source_vocab_size=103,
    max_len=50,
    head=s.LmHead(tied=True, bias=True),
)
BART = replace(MARIAN, positions=s.Learned(first=2), source_vocab_size=None)
MODELS = {
    "llama": LLAMA,
    "moe": MOE,
    "deepseek": DEEPSEEK,
    "gpt2": GPT2,
    "bert": BERT,
    "pooler": replace(BERT, head=s.Pooler()),
    "marian": MARIAN,
    "bart": BART,
    "deepseek preset": preset("deepseek"),
    "gpt2 preset": preset("gpt2"),
}
FAMILIES_OF = {
    "huggingface": {
        "llama": LLAMA,
        "qwen3": LLAMA,
        "gemma": LLAMA,
        "mixtral": MOE,
        "qwen3_moe": MOE,
        "deepseek_v3": DEEPSEEK,
    },
    "gpt2": {"gpt2": GPT2},
    "bert": {"bert": BERT},
    "marian": {"marian": MARIAN, "bart": BART},
}
models = pytest.mark.parametrize("spec", MODELS.values(), ids=[*MODELS])


# ── Names of weights ────────────────────────────────────────────────────────────────────────────
def glossary_pattern(name: str) -> str:
    """A name of a name mapping as in the glossary: N is a layer, E an expert."""
    return re.sub(r"\.(\{p\}|weight)$", "", name).replace("{i}", "N").replace("{e}", "E")


def mapped_names(rows) -> dict[str, set[str]]:
    """Native name -> foreign names."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for native in map(glossary_pattern, row.native_names):
            foreign = glossary_pattern(row.foreign)
            if native.startswith("encoder.") and "model.encoder" in foreign:
                foreign = foreign.replace("model.encoder", "model.decoder")
            found.setdefault(glossary_name(native), set()).add(foreign)
    return found


def family_rows(format: str):
    for name, spec in FAMILIES_OF[format].items():
        yield from FAMILIES[name].rows(spec)
        if spec is BERT:
            yield from FAMILIES[name].rows(replace(spec, head=s.Pooler()))


def tied_names(format: str) -> set[str]:
    """Names under which a file may repeat a tied weight."""
    tied = [name for family in FAMILIES_OF[format] for name in FAMILIES[family].tied]
    return {name.removesuffix(".weight") for name in tied if name.endswith(".weight")}


@pytest.mark.parametrize("format", FAMILIES_OF)
def test_names_in_checkpoints_are_those_of_the_name_mappings(format):
    mapped, tied = mapped_names(family_rows(format)), tied_names(format)
    assert set(mapped) <= {entry.name for entry in WEIGHTS}
    for entry in WEIGHTS:
        names, known = set(entry.full_names(format)), mapped.get(entry.name, set())
        assert known <= names <= known | tied, entry.term


def llama_cpp_name(name: str) -> str | None:
    """The GGUF name that llama.cpp's converter gives a weight."""
    name = name.replace(".E.", ".").removesuffix("_bias").replace(".N.", ".0.")
    for arch in ("LLAMA", "QWEN3", "GPT2", "BERT", "DEEPSEEK2"):
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], 1)
        found = names.get_name(name) or names.get_name(name.removeprefix("bert."))
        if found:
            return found.replace("blk.0.", "blk.N.")
    return None


def test_names_in_gguf_files_are_those_of_our_export_and_of_llama_cpp():
    exported = mapped_names([*ROWS, *GPT2_ROWS])
    assert set(exported) <= {entry.name for entry in WEIGHTS}
    for entry in WEIGHTS:
        others = [*entry.full_names("huggingface"), *entry.full_names("gpt2")]
        converted = {llama_cpp_name(name) for name in [*others, *entry.full_names("bert")]} - {None}
        assert set(entry.full_names("gguf")) == exported.get(entry.name, set()) | converted, entry


def test_llama_cpp_converts_the_original_llama_names_to_the_gguf_names():
    named = [entry for entry in WEIGHTS if entry.llama]
    assert len(named) == 16  # dense layers, router and experts, embedding, head, final norm
    for entry in named:
        (name,) = entry.full_names("llama")
        assert llama_cpp_name(name) in entry.full_names("gguf"), entry.term


def test_layer_prefixes_are_those_of_the_formats():
    for format in FAMILIES_OF:
        for native, foreign in mapped_names(family_rows(format)).items():
            if ".layers.N." in native:
                assert all(name.startswith(LAYER_PREFIXES[format]) for name in foreign)


# ── Names of sizes ──────────────────────────────────────────────────────────────────────────────
def gguf_metadata(spec: s.Spec) -> dict[str, object]:
    gguf_writer = gguf.GGUFWriter(None, "llama")
    add_sizes(gguf_writer, spec)
    found = gguf_writer.kv_data[0]
    return {key.removeprefix("llama."): value.value for key, value in found.items()}


def configs(format: str) -> list[tuple[s.Spec, dict[str, object]]]:
    """Specs with their config.json, or the metadata of their GGUF file."""
    if format == "gguf":
        return [(spec, gguf_metadata(spec)) for spec in (LLAMA, MOE)]
    models = FAMILIES_OF.get(format, {}).items()
    return [(spec, FAMILIES[name].write(spec)) for name, spec in models if name != "gemma"]


@pytest.mark.parametrize("format", LAYER_PREFIXES)
def test_size_names_are_the_fields_of_exported_configs(format):
    written = [(model_glossary(spec)["size"], config) for spec, config in configs(format)]
    for entry in GLOSSARY["size"]:
        for field in entry.names(format):
            values = [
                (size.value, config.get(field))
                for sizes, config in written
                for size in sizes
                if size.entry is entry
            ]
            assert any(value == size for value, size in values), (entry.term, field, values)


# ── Shapes ──────────────────────────────────────────────────────────────────────────────────────
def layer_of(spec: s.Spec, row) -> s.Layer:
    """A layer that has this weight; cross-attention in place of self-attention if it is there."""
    part = spec.encoder if row.name.startswith("encoder") or not spec.decoder else spec.decoder
    layer = part.each_layer()[int(re.split("[-,]", row.layers or "0")[0])]
    return replace(layer, mixer=layer.cross) if ".cross." in row.name else layer


def evaluated(shape: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape in symbols, computed with these sizes."""
    names = {name.replace(".", "_"): size for name, size in sizes.items()}
    return eval(shape.replace(".", "_"), {}, names)


@models
def test_shapes_in_symbols_are_those_of_the_stored_weights(spec):
    extra = {"source_vocab_size": spec.source_vocab_size, "token_types": spec.token_types}
    extra["first"] = getattr(spec.positions, "first", 0)
    rows = model_glossary(spec)["weight"]
    assert len(rows) > 10
    for row in rows:
        sizes = sizes_of(spec, layer_of(spec, row)) | extra
        assert evaluated(row.entry.shape, sizes) == row.shape, row.name


def n_layers(layers: str) -> int:
    """The number of layers in ranges such as 0-2, 5; 1 outside the layers."""
    ends = [list(map(int, part.split("-"))) for part in layers.split(", ")] if layers else [[0]]
    return sum(end[-1] - end[0] + 1 for end in ends)


@models
def test_every_weight_of_a_model_is_in_its_glossary(spec):
    parameters = dict(meta_model(spec).named_parameters())
    weights = {name: weight for name, weight in parameters.items() if not name.endswith(".bias")}
    rows = model_glossary(spec)["weight"]
    own = [row for row in rows if row.name != "embed" or row.entry.name == "embed"]
    assert sum(n_layers(row.layers) for row in own) == len(weights)
    counted = sum(prod(row.shape) * n_layers(row.layers) for row in own)
    assert counted == sum(weight.numel() for weight in weights.values())
    biases = [row for row in rows if row.bias]
    assert sum(n_layers(row.layers) for row in biases) == len(parameters) - len(weights)


@pytest.mark.parametrize(
    "spec", [GPT2, DEEPSEEK, BERT, MARIAN], ids=["gpt2", "deepseek", "bert", "marian"]
)
def test_tensor_shapes_are_those_of_a_pass(spec):
    outputs = {module.name: module.activation for module in shapes_of(spec, batch=2, length=7)}
    compared = set()
    for row in model_glossary(spec)["tensor"]:
        name = row.name.replace("N", "0")
        if name in outputs:
            sizes = [
                {"batch": 2}.get(size, 7) if isinstance(size, str) else size for size in row.shape
            ]
            assert outputs[name] == tuple(sizes), row.name
            compared.add(row.entry.term)
    assert {"queries", "values", "attention weights", "hidden state", "logits"} <= compared


@pytest.mark.parametrize(("spec", "term"), [(LLAMA, "KV cache"), (DEEPSEEK, "latent cache")])
def test_cache_shapes_are_those_of_a_cache(spec, term):
    model = Transformer(spec).eval()
    cache = model.new_cache()
    with torch.no_grad():
        model.decode(torch.zeros(2, 5, dtype=torch.long), cache=cache)
    (row,) = [row for row in model_glossary(spec)["tensor"] if row.name == "cache"]
    keys, values = (buffer[:, :, :5] for buffer in cache.layers[0].attn.buffers)
    width = keys.shape[3] + (values.shape[3] if term == "latent cache" else 0)
    assert row.entry.term == term
    assert row.shape == ("batch", keys.shape[1], "key", width)


def test_a_model_has_only_its_own_terms():
    terms = {name: {row.entry.term for row in model_glossary(spec)["tensor"]} for name, spec in
             MODELS.items()}  # fmt: skip
    assert set(CONDITIONS) <= {entry.term for entry in GLOSSARY["tensor"]}
    assert "causal mask" not in terms["bert"] and "causal mask" in terms["llama"]
    assert "encoder memory" not in terms["bert"] and "encoder memory" in terms["marian"]
    assert "logits" not in terms["pooler"] and "logits" in terms["bert"]
    assert "KV cache" not in terms["deepseek"] and "latent cache" not in terms["llama"]


def test_a_tied_head_is_the_embedding():
    rows = {row.entry.term: row for row in model_glossary(preset("gpt2"))["weight"]}
    assert rows["language-model head"].name == "embed"
    assert rows["language-model head"].shape == (50_257, 768)
    assert rows["query projection"].layers == "0-11" and rows["query projection"].bias


# ── The table ───────────────────────────────────────────────────────────────────────────────────
def resolve(path: str) -> object:
    """The module, class, function or dataclass field at this path."""
    module, rest = path, ""
    while True:
        try:
            found: object = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _dot, last = module.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
    for name in rest.split(".") if rest else []:
        options = {field.name: field for field in fields(found)} if is_dataclass(found) else {}
        found = options.get(name) or getattr(found, name)
    return found


ENTRIES = [(kind, entry) for kind, entries in GLOSSARY.items() for entry in entries]


def test_textbook_functions_and_code_paths_exist():
    for kind, entry in ENTRIES:
        if entry.textbook:
            assert resolve(f"qkv.textbook.{entry.textbook}")
        if kind not in ("size", "weight", "tensor"):
            assert resolve(f"qkv.{entry.name}")


def test_a_path_that_does_not_exist_is_found():
    with pytest.raises(AttributeError):
        resolve("qkv.textbook.attention.MultiHeadAttentions")


def test_every_term_is_listed_once_with_a_chinese_term():
    terms = [entry.term for _kind, entry in ENTRIES]
    assert len(terms) == len(set(terms)) > 120
    assert {entry.term for _kind, entry in ENTRIES if entry.chinese == entry.term} == {
        "BPE-dropout",
        "R-Drop",
    }
