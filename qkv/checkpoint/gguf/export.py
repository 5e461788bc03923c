"""Our models as GGUF files, for llama.cpp and all that is built on it: one file with weights, sizes and tokenizer.

In: a model folder of a decoder. Out: model.gguf (float32, float16 or 8 bits) and the report; or one line that says which
part GGUF cannot express. Told in docs/gguf.md.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.checkpoint.durable import write_file
from qkv.checkpoint.gguf.architectures import choose, told
from qkv.checkpoint.gguf.parity import check_parity
from qkv.checkpoint.gguf.tokenizer import add_tokenizer
from qkv.checkpoint.huggingface.export import refuse_not_installed, refuse_occupied
from qkv.checkpoint.load import load_folder
from qkv.checkpoint.loaded_model import LoadedModel, WeightsMetadata
from qkv.checkpoint.names import links, to_theirs
from qkv.checkpoint.parity import Report
from qkv.model.spec import Experts, LinearScaling, LlamaScaling, Rotary, Spec
from qkv.model.turn import frequencies

TYPES = {"float32": "F32", "float16": "F16", "int8": "Q8_0"}  # our word for a type, and ggml's
FILES = {"float32": "ALL_F32", "float16": "MOSTLY_F16", "int8": "MOSTLY_Q8_0"}
BLOCK = 32  # numbers that share one scale in Q8_0: narrower rows stay float16


def export_gguf(
    folder: str | Path, out: str | Path, n_inputs: int = 8, dtype: str = "float32"
) -> tuple[WeightsMetadata, Report | None]:
    """A model folder as a GGUF file, and the comparison of both; 0 inputs: no comparison."""
    out = Path(out)
    refuse_occupied(out)
    loaded = load_folder(folder, as_stored=True)
    name = save_gguf(out, loaded, dtype)
    return (
        replace(loaded.metadata, family=f"gguf {name}", dtype=dtype),
        check_parity(loaded.model, out, dtype, n_inputs) if n_inputs else None,
    )


def save_gguf(path: str | Path, loaded: LoadedModel, dtype: str = "float32") -> str:
    """The whole file or none of it; the architecture it was written as comes back."""
    path, spec = Path(path), loaded.model.spec
    refuse_not_installed("gguf")
    one, target = choose(spec)
    weights = told(loaded.model.state_dict(), spec, target)
    table, nameless = links(one.rows(target), weights)
    assert not nameless, nameless
    write_file(
        path, lambda part: write(part, one.name, loaded, target, to_theirs(table, weights), dtype)
    )
    return one.name


def write(
    path: Path,
    name: str,
    loaded: LoadedModel,
    target: Spec,
    weights: dict[str, torch.Tensor],
    dtype: str,
) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, name)
    writer.add_name(f"qkv {name}")  # transformers insists on a name
    writer.add_file_type(gguf.LlamaFileType[FILES[dtype]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_sizes(writer, target)
    add_tokenizer(writer, loaded, target.vocab_size)
    for tensor, values, kind in packed(weights, target, dtype):
        writer.add_tensor(tensor, values, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer: Any, spec: Spec) -> None:
    """The numbers that llama.cpp builds the model from."""
    assert spec.decoder is not None
    layer = spec.decoder.layers[0]
    heads, wide = layer.mixer, layer.feed_forward
    writer.add_context_length(spec.max_len)
    writer.add_embedding_length(spec.d_model)
    writer.add_block_count(len(spec.decoder.each_layer()))
    writer.add_vocab_size(spec.vocab_size)
    writer.add_head_count(heads.n_heads)  # type: ignore[union-attr]
    writer.add_head_count_kv(heads.n_kv_heads)  # type: ignore[union-attr]
    writer.add_key_length(heads.d_head)  # type: ignore[union-attr]
    writer.add_value_length(heads.d_head)  # type: ignore[union-attr]
    (writer.add_layer_norm_rms_eps if layer.norm.kind == "rms" else writer.add_layer_norm_eps)(
        layer.norm.eps
    )
    writer.add_feed_forward_length(wide.each.d_ff if isinstance(wide, Experts) else wide.d_ff)
    if isinstance(wide, Experts):
        writer.add_expert_count(wide.n_experts)
        writer.add_expert_used_count(wide.n_active)
    if isinstance(spec.positions, Rotary):
        add_rotary(writer, spec.positions, heads.d_head)  # type: ignore[union-attr]


def add_rotary(writer: Any, positions: Rotary, d_head: int) -> None:
    """Llama 3's slower waves are no number but a tensor: see `packed`."""
    import gguf

    writer.add_rope_dimension_count(d_head)
    writer.add_rope_freq_base(positions.base)
    if isinstance(positions.scaling, LinearScaling):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(positions.scaling.factor)


def packed(
    weights: dict[str, torch.Tensor], spec: Spec, dtype: str
) -> Iterator[tuple[str, np.ndarray, str]]:
    """Each tensor with its type: matrices in `dtype`; vectors, places, routers and waves always float32, as llama.cpp wants."""
    import gguf

    if isinstance(spec.positions, Rotary) and isinstance(spec.positions.scaling, LlamaScaling):
        d_head = spec.decoder.layers[0].mixer.d_head  # type: ignore[union-attr]
        plain = frequencies(Rotary(spec.positions.base), d_head)
        slowed = zip(plain, frequencies(spec.positions, d_head), strict=True)
        yield (
            "rope_freqs.weight",
            np.array([fast / slow for fast, slow in slowed], dtype=np.float32),
            "F32",
        )
    for name, weight in weights.items():
        values = weight.float().cpu().contiguous().numpy()
        kind = (
            "F32"
            if values.ndim == 1 or name.startswith("position") or "ffn_gate_inp" in name
            else TYPES[dtype]
        )
        if kind == "Q8_0" and values.shape[-1] % BLOCK:
            kind = "F16"
        yield name, gguf.quantize(values, gguf.GGMLQuantizationType[kind]), kind
