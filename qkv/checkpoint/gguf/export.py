"""Export a decoder-only model to GGUF for llama.cpp: one file with weights, metadata and tokenizer.

The weights are float32, float16 or int8 (Q8_0). See docs/guides/import-export.md.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qkv.checkpoint.disk import refuse_not_installed, refuse_occupied
from qkv.checkpoint.durable import write_file
from qkv.checkpoint.gguf.architectures import (
    ARCHITECTURES,
    choose_architecture,
    decoder_parts,
    gguf_weights,
)
from qkv.checkpoint.gguf.parity import check_parity
from qkv.checkpoint.gguf.tokenizer import add_tokenizer
from qkv.checkpoint.load import load_folder
from qkv.checkpoint.loaded_model import LoadedModel
from qkv.checkpoint.names import Weights, resolve_rows, to_foreign
from qkv.checkpoint.parity import Conversion
from qkv.model.rotary import frequencies
from qkv.model.spec import Custom, LinearScaling, LlamaScaling, MixtureOfExperts, Rotary, Spec

__all__ = ["save_gguf"]

TYPES = {"float32": "F32", "float16": "F16", "int8": "Q8_0"}  # dtype -> ggml type
FILE_TYPES = {"float32": "ALL_F32", "float16": "MOSTLY_F16", "int8": "MOSTLY_Q8_0"}
BLOCK_SIZE = 32  # values that share one scale in Q8_0; other row lengths stay float16


def export_gguf(
    folder: str | Path, out: str | Path, n_inputs: int = 8, dtype: str = "float32"
) -> Conversion:
    """Convert a model folder to a GGUF file.

    Args:
        folder: The model folder.
        out: The new file.
        n_inputs: Random inputs on which both are compared; 0: no comparison.
        dtype: float32, float16 or int8.
    """
    out = Path(out)
    refuse_occupied(out)
    loaded = load_folder(folder, as_stored=True)
    name = save_gguf(out, loaded, dtype)
    return (
        replace(loaded.metadata, family=f"gguf {name}", dtype=dtype),
        check_parity(loaded.model, out, dtype, n_inputs) if n_inputs else None,
    )


def save_gguf(path: str | Path, loaded: LoadedModel, dtype: str = "float32") -> str:
    """Write a GGUF file, atomically; return its architecture."""
    spec = loaded.model.spec
    refuse_not_installed("gguf")
    name, target = choose_architecture(spec)
    weights = gguf_weights(loaded.model.state_dict(), spec, target)
    tensors = to_foreign(resolve_rows(ARCHITECTURES[name].rows(target), weights), weights)
    import gguf

    def write(part: Path) -> None:
        gguf_writer = gguf.GGUFWriter(part, name)
        gguf_writer.add_name(f"qkv {name}")  # transformers requires a name
        gguf_writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[dtype]])
        gguf_writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        add_sizes(gguf_writer, target)
        add_tokenizer(gguf_writer, loaded, target.vocab_size)
        for tensor, values, kind in packed(tensors, target, dtype):
            gguf_writer.add_tensor(tensor, values, raw_dtype=gguf.GGMLQuantizationType[kind])
        gguf_writer.write_header_to_file()
        gguf_writer.write_kv_data_to_file()
        gguf_writer.write_tensors_to_file()
        gguf_writer.close()

    write_file(Path(path), write)
    return name


def add_sizes(gguf_writer: Any, spec: Spec) -> None:
    """The metadata from which llama.cpp builds the model."""
    assert spec.decoder is not None
    layer, (heads, ffn) = spec.decoder.layers[0], decoder_parts(spec)
    assert not isinstance(ffn, Custom | None)  # no architecture has custom parts or none
    eps = "rms_eps" if layer.norm.kind == "rms" else "eps"
    sizes = {
        "context_length": spec.max_len,
        "embedding_length": spec.d_model,
        "block_count": len(spec.decoder.each_layer()),
        "vocab_size": spec.vocab_size,
        "head_count": heads.n_heads,
        "head_count_kv": heads.n_kv_heads,
        "key_length": heads.d_head,
        "value_length": heads.d_head,
        f"layer_norm_{eps}": layer.norm.eps,
        "feed_forward_length": ffn.expert.d_ff if isinstance(ffn, MixtureOfExperts) else ffn.d_ff,
    }
    if isinstance(ffn, MixtureOfExperts):
        sizes |= {"expert_count": ffn.n_experts, "expert_used_count": ffn.n_experts_per_token}
    for name, size in sizes.items():
        getattr(gguf_writer, f"add_{name}")(size)
    if isinstance(spec.positions, Rotary):
        add_rotary(gguf_writer, spec.positions, heads.d_head)


def add_rotary(gguf_writer: Any, positions: Rotary, d_head: int) -> None:
    """RoPE metadata; Llama 3's scaling is a tensor instead: see `packed`."""
    import gguf

    gguf_writer.add_rope_dimension_count(d_head)
    gguf_writer.add_rope_freq_base(positions.theta)
    if isinstance(positions.scaling, LinearScaling):
        gguf_writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        gguf_writer.add_rope_scaling_factor(positions.scaling.factor)


def packed(weights: Weights, spec: Spec, dtype: str) -> Iterator[tuple[str, np.ndarray, str]]:
    """Each tensor with its type: matrices in `dtype`, others in float32 as llama.cpp requires."""
    import gguf

    if isinstance(spec.positions, Rotary) and isinstance(spec.positions.scaling, LlamaScaling):
        d_head = decoder_parts(spec)[0].d_head
        unscaled = frequencies(Rotary(spec.positions.theta), d_head)
        factors = np.divide(unscaled, frequencies(spec.positions, d_head))
        yield "rope_freqs.weight", factors.astype(np.float32), "F32"
    for name, weight in weights.items():
        values = weight.float().cpu().contiguous().numpy()
        kind = TYPES[dtype]
        if values.ndim == 1 or name.startswith("position") or "ffn_gate_inp" in name:
            kind = "F32"
        elif kind == "Q8_0" and values.shape[-1] % BLOCK_SIZE:
            kind = "F16"
        yield name, gguf.quantize(values, gguf.GGMLQuantizationType[kind]), kind
