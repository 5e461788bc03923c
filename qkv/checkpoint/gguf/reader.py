"""A GGUF file read as llama.cpp reads it, to prove what was written.

In: a file of one of the architectures we write. Out: a model made from nothing but the file: sizes from its fields,
weights by llama.cpp's names, neighbours turned as llama.cpp turns them. Told in docs/gguf.md, "The report".
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.gguf.architectures import ATTENTION, EXPERTS, FEED_FORWARD, FRAME, GPT2_ROWS
from qkv.checkpoint.names import links, to_ours
from qkv.model import spec as s
from qkv.model.positions import RotaryPositions
from qkv.model.transformer import Transformer
from qkv.model.turn import AdjacentTurn, Turn


class Fields:
    """What a file says of itself: fields["attention.head_count"]."""

    def __init__(self, reader: Any):
        self.values = {
            name: one.contents()
            for name, one in reader.fields.items()
            if not name.startswith("tokenizer.")
        }
        self.architecture = self.values["general.architecture"]

    def __getitem__(self, name: str) -> Any:
        return self.values[f"{self.architecture}.{name}"]

    def get(self, name: str) -> Any:
        return self.values.get(f"{self.architecture}.{name}")


class SlowedPositions(RotaryPositions):
    """Each wave is slowed by a factor that the file gives: the tensor rope_freqs."""

    def __init__(self, plain: RotaryPositions, slower: Tensor):
        super().__init__(plain.rotary, plain.width)
        self.speeds = (
            plain.rotary.base ** (-torch.arange(0, plain.width, 2).double() / plain.width) / slower
        )

    def turn(self, places: Tensor, dtype: torch.dtype) -> Turn:
        angles = places[:, None, :, None] * self.speeds  # (batch or 1, 1, length, half)
        return AdjacentTurn(angles.cos().to(dtype), angles.sin().to(dtype))


def read_gguf(path: Path) -> Transformer:
    """The model of the file, in float32; every tensor is used."""
    import gguf

    reader = gguf.GGUFReader(path)
    tensors = {one.name: whole(one) for one in reader.tensors}
    slower = tensors.pop("rope_freqs.weight", None)
    spec = spec_of(Fields(reader), tensors)
    with torch.device("meta"):
        model = Transformer(spec)
    own = GPT2_ROWS if isinstance(spec.positions, s.Learned) else ATTENTION
    table, _ = links(FRAME + own + FEED_FORWARD + EXPERTS, model.state_dict())
    model.load_state_dict(to_ours(table, tensors.pop), assign=True)
    assert not tensors, sorted(tensors)
    if slower is not None and model.decoder is not None:
        model.decoder.positions = SlowedPositions(model.decoder.positions, slower)  # type: ignore[arg-type]
    return model.eval()


def whole(tensor: Any) -> Tensor:
    """In float32; GGUF writes the fastest axis first, we write it last."""
    import gguf

    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(values.copy()).view(*(int(size) for size in reversed(tensor.shape)))


def spec_of(fields: Fields, tensors: dict[str, Tensor]) -> s.Spec:
    """What llama.cpp would build."""
    rms = fields.get("attention.layer_norm_rms_epsilon")
    norm = (
        s.Norm("rms", "pre", rms)
        if rms
        else s.Norm("layer", "pre", fields["attention.layer_norm_epsilon"])
    )
    layer = s.Layer(
        heads_of(fields, tensors), wide_of(fields, tensors), norm, repeat=fields["block_count"]
    )
    return s.Spec(
        fields["vocab_size"],
        fields["embedding_length"],
        None,
        s.Stack((layer,), "past", True),
        positions_of(fields),
        s.LmHead("output.weight" not in tensors),
        max_len=fields["context_length"],
        scaled_embedding=fields.architecture == "gemma",
    )


def heads_of(fields: Fields, tensors: dict[str, Tensor]) -> s.Heads:
    bias = any(f"blk.0.{name}.bias" in tensors for name in ("attn_q", "attn_qkv"))
    return s.Heads(
        fields["attention.head_count"],
        fields["attention.head_count_kv"],
        fields["attention.key_length"],
        bias=bias,
        out_bias="blk.0.attn_output.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
    )


def wide_of(fields: Fields, tensors: dict[str, Tensor]) -> s.FeedForward:
    width, bias = fields["feed_forward_length"], "blk.0.ffn_up.bias" in tensors
    if fields.get("expert_count"):
        return s.Experts(fields["expert_count"], fields["expert_used_count"], s.Gated(width))
    if "blk.0.ffn_gate.weight" in tensors:
        return s.Gated(width, "gelu_tanh" if fields.architecture == "gemma" else "silu", bias)
    return s.Dense(width, "gelu_tanh", bias)


def positions_of(fields: Fields) -> s.Positions:
    base, factor = fields.get("rope.freq_base"), fields.get("rope.scaling.factor")
    if base is None:
        return s.Learned()
    pairs = "adjacent" if fields.architecture == "llama" else "halves"
    return s.Rotary(base, 1.0, pairs, s.LinearScaling(factor) if factor else None)  # type: ignore[arg-type]
