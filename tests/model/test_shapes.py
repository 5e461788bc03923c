"""The shapes that `qkv model show` prints equal those of a forward pass."""

from dataclasses import replace

import pytest
import torch

from qkv.model import spec as s
from qkv.model.eager_core import eager_attention
from qkv.model.presets import preset
from qkv.model.shapes import shapes_of
from qkv.model.transformer import Transformer

SIZES = {"vocab_size": 31, "d_model": 16, "n_heads": 2, "d_ff": 24}
BATCH, LENGTH = 3, 7


def with_mixer(name, mixer):
    spec = preset(name, **SIZES, layers=2)
    stacks = {
        side: replace(stack, layers=tuple(replace(layer, mixer=mixer) for layer in stack.layers))
        for side in ("encoder", "decoder")
        if (stack := getattr(spec, side))
    }
    return replace(spec, **stacks)


SPECS = {
    "2017": preset("tiny", **SIZES, layers=2),
    "two vocabularies": replace(preset("seq2seq", **SIZES, layers=1), source_vocab_size=29),
    "convolution in the first layer": preset(
        "causal-lm", **SIZES, layers=3, convolution=4, qk_norm=True
    ),
    "gpt2": replace(preset("gpt2", **SIZES, layers=2), max_len=LENGTH),
    "grouped-query": preset("qwen", **SIZES, layers=2, n_kv_heads=1, d_head=4),
    "latent attention and experts": preset(
        "deepseek", **SIZES, layers=3, n_experts=4, n_experts_per_token=2, d_expert=8
    ),
    "experts": preset("mixtral", **SIZES, layers=2, n_kv_heads=1),
    "bert": preset("bert", **SIZES, layers=2),
    "masked": replace(preset("minilm", **SIZES, layers=2), head=s.MaskedHead()),
    "no head": replace(preset("sentence-encoder", **SIZES, layers=1), head=None),
    **{
        type(mixer).__name__ + " " + name: with_mixer(name, mixer)
        for name in ("causal-lm", "sentence-encoder")
        for mixer in (
            s.Recurrent(),
            s.Recurrent("gru"),
            s.Convolution(3),
            s.TokenMlp(),
            s.Pooling(3),
        )
    },
}


def run_forward(spec):
    """Shapes of the outputs of a forward pass, and of the weights, by module path."""
    model, outputs = Transformer(spec).eval(), {}
    ids = torch.randint(1, 20, (BATCH, LENGTH))
    with eager_attention(model), torch.no_grad():
        for name, module in model.named_modules():
            module.register_forward_hook(
                lambda _, __, output, name=name: outputs.__setitem__(name, output)
            )
        memory = model.encode(ids) if model.encoder else None
        hidden = model.decode(ids, memory) if model.decoder else memory.states
        if model.lm_head is not None:
            model.logits(hidden)
    return (
        {
            name: tuple(output.shape)
            for name, output in outputs.items()
            if isinstance(output, torch.Tensor)
        },
        {name: tuple(weight.shape) for name, weight in model.named_parameters()},
    )


@pytest.mark.parametrize("name", SPECS)
def test_shapes_equal_those_of_a_forward_pass(name):
    outputs, weights = run_forward(SPECS[name])
    rows = shapes_of(SPECS[name], BATCH, LENGTH)
    listed = {row.name: row.activation for row in rows if row.activation}
    assert listed == {path: outputs[path] for path in listed}
    # Of identical layers the first is listed; the token count of an expert depends on the routing.
    firsts = {".".join(row.name.split(".")[:3]) for row in rows if ".layers." in row.name}
    repeated = {
        path
        for path in outputs
        if ".layers." in path and ".".join(path.split(".")[:3]) not in firsts
    }
    assert (
        outputs.keys() - listed.keys() - repeated
        == {path for path in outputs if path.endswith(".experts")} - repeated
    )
    named = {f"{row.name}.{key}": shape for row in rows for key, shape in row.weights.items()}
    assert named == {path: shape for path, shape in weights.items() if path in named}
    count = sum(
        row.repeat * torch.Size(shape).numel() for row in rows for shape in row.weights.values()
    )
    assert count == sum(torch.Size(shape).numel() for shape in weights.values())


def test_a_large_model_takes_no_memory():
    rows = shapes_of(preset("mixtral"), 2, 4_096)
    assert (
        sum(
            row.repeat * torch.Size(shape).numel() for row in rows for shape in row.weights.values()
        )
        == 46_702_792_704
    )
    assert {row.name: row.activation for row in rows}[
        "decoder.layers.0.attn.branch.core.scores"
    ] == (2, 32, 4_096, 4_096)
