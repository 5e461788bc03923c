"""Read a GGUF file as llama.cpp does, to check an export.

The spec comes from the metadata of the file, and Llama's rotary embedding is interleaved.
See docs/guides/import-export.md, "Parity report".
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.gguf.architectures import GPT2_ROWS, ROWS
from qkv.checkpoint.names import Weights, resolve_rows, to_native
from qkv.checkpoint.weights import assign_weights, meta_model, refuse_missing_layers
from qkv.errors import QkvError
from qkv.json_files import check_regular
from qkv.messages import _
from qkv.model import spec as s
from qkv.model.check_spec import check_spec
from qkv.model.positions import RotaryPositions
from qkv.model.rotary import InterleavedRotation, Rotation
from qkv.model.transformer import Transformer

MAX_GGUF_BYTES = 1 << 40
Fields = dict[str, Any]  # the metadata of a file: fields["attention.head_count"]


class ScaledRotaryPositions(RotaryPositions):
    """Rotary positions whose frequencies are divided by the tensor rope_freqs of the file."""

    def __init__(self, unscaled: RotaryPositions, factors: Tensor):
        super().__init__(unscaled.rotary, unscaled.width)
        exponents = -torch.arange(0, self.width, 2).double() / self.width
        self.frequencies = self.rotary.theta**exponents / factors

    def rotation(self, position_ids: Tensor, dtype: torch.dtype) -> Rotation:
        angles = position_ids[:, None, :, None] * self.frequencies  # (batch or 1, 1, length, half)
        return InterleavedRotation(angles.cos().to(dtype), angles.sin().to(dtype))


def read_gguf(path: Path) -> Transformer:
    """The model of a file in float32; every tensor must be used."""
    check_regular(path, MAX_GGUF_BYTES)
    try:
        return read_model(path)
    except QkvError:
        raise
    except Exception as error:  # of the gguf library, numpy and torch: many types
        wrong = _("not a valid GGUF file ({reason})", reason=f"{error!s:.200}")
        raise QkvError(path, wrong, _("export the model again")) from None


def read_model(path: Path) -> Transformer:
    """The model of a file that may be damaged, with errors of any type."""
    import gguf

    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: dequantized(tensor) for tensor in reader.tensors}
    factors = tensors.pop("rope_freqs.weight", None)
    fields = read_fields(reader)
    spec = spec_of(fields, tensors)
    check_spec(spec, str(path))
    refuse_missing_layers(path, spec, len(tensors))
    model = meta_model(spec)
    rows = GPT2_ROWS if fields["architecture"] == "gpt2" else ROWS
    table = resolve_rows(rows, model.state_dict())
    assign_weights(model, to_native(table, tensors.pop), "cpu")
    assert not tensors, sorted(tensors)
    if factors is not None and model.decoder is not None:
        model.decoder.positions = ScaledRotaryPositions(model.decoder.positions, factors)  # type: ignore[arg-type]
    return model.eval()


def read_fields(reader: Any) -> Fields:
    """The metadata without the tokenizer; names lack their prefix, "general." or "llama."."""
    return {
        name.partition(".")[2]: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("tokenizer.")
    }


def dequantized(tensor: Any) -> Tensor:
    """The tensor in float32; GGUF lists the innermost dimension first."""
    import gguf

    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(values.copy()).view(*(int(size) for size in reversed(tensor.shape)))


def spec_of(fields: Fields, tensors: Weights) -> s.Spec:
    """The spec that llama.cpp builds."""
    rms = fields.get("attention.layer_norm_rms_epsilon")
    eps = rms or fields["attention.layer_norm_epsilon"]
    layer = s.Layer(
        attention_of(fields, tensors),
        feed_forward_of(fields, tensors),
        s.Norm("rms" if rms else "layer", "pre", eps),
        repeat=fields["block_count"],
    )
    return s.Spec(
        fields["vocab_size"],
        fields["embedding_length"],
        None,
        s.Stack((layer,), causal=True, final_norm=True),
        positions_of(fields),
        s.LmHead("output.weight" not in tensors),
        max_len=fields["context_length"],
        scaled_embedding=fields["architecture"] == "gemma",
    )


def attention_of(fields: Fields, tensors: Weights) -> s.Attention:
    return s.Attention(
        fields["attention.head_count"],
        fields["attention.head_count_kv"],
        fields["attention.key_length"],
        bias="blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
    )


def feed_forward_of(fields: Fields, tensors: Weights) -> s.FeedForward:
    d_ff, bias = fields["feed_forward_length"], "blk.0.ffn_up.bias" in tensors
    if fields.get("expert_count"):
        return s.MixtureOfExperts(
            fields["expert_count"], fields["expert_used_count"], s.Gated(d_ff)
        )
    if "blk.0.ffn_gate.weight" in tensors:
        return s.Gated(d_ff, "gelu_tanh" if fields["architecture"] == "gemma" else "silu", bias)
    return s.Dense(d_ff, "gelu_tanh", bias)


def positions_of(fields: Fields) -> s.Positions:
    theta, factor = fields.get("rope.freq_base"), fields.get("rope.scaling.factor")
    if theta is None:
        return s.Learned()
    scaling = s.LinearScaling(factor) if factor else None
    return s.Rotary(theta, interleaved=fields["architecture"] == "llama", scaling=scaling)
