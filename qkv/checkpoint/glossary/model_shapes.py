"""The glossary of one model: its sizes, the weights it has and its tensors, with real shapes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from qkv.checkpoint.glossary import WEIGHTS
from qkv.checkpoint.glossary.entry import LAYER, Entry
from qkv.checkpoint.glossary.sizes import SIZES
from qkv.checkpoint.glossary.tensors import TENSORS
from qkv.checkpoint.names import LAYER as LAYER_INDEX
from qkv.checkpoint.weights import meta_model
from qkv.model.spec import (
    Attention,
    Dense,
    Gated,
    LatentAttention,
    Layer,
    LmHead,
    MaskedHead,
    MixtureOfExperts,
    Spec,
    Stack,
)

Sizes = dict[str, int]
Shape = tuple[int | str, ...]
PASS_SIZES = ("batch", "length", "query", "key", "source")  # these differ from pass to pass


@dataclass(frozen=True)
class ModelEntry:
    """A term in one model: the name, and the value of a size or the shape of a weight or tensor."""

    entry: Entry
    name: str
    value: int | None = None
    shape: Shape = ()
    bias: bool = False  # whether the weight has a bias
    layers: str = ""  # which layers have it: 0-5, 8


def model_glossary(spec: Spec) -> dict[str, list[ModelEntry]]:
    """The sizes, weights and tensors of a model, by kind as in GLOSSARY.

    Args:
        spec: The model; its weights are not needed.
    """
    return {
        "size": list(_sizes(spec)),
        "weight": list(_weights(spec)),
        "tensor": [found for entry in TENSORS for found in _tensors(entry, spec)],
    }


# ── Sizes ─────────────────────────────────────────────────────────────────────────────────────
def sizes_of(spec: Spec, layer: Layer) -> Sizes:
    """The sizes of a layer by the name that shapes use, and those of the whole model."""
    sizes = {"vocab_size": spec.vocab_size, "d_model": spec.d_model, "max_len": spec.max_len}
    match layer.mixer:
        case Attention(n_heads, n_kv_heads, d_head):
            sizes |= {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
            sizes |= {"d_head": d_head, "v_head_dim": d_head}
        case LatentAttention(n_heads, kv_rank, nope, rope, value, q_rank):
            sizes |= {"n_heads": n_heads, "n_kv_heads": n_heads}
            sizes |= {"d_head": nope + rope, "v_head_dim": value, "kv_lora_rank": kv_rank}
            sizes |= {"qk_nope_head_dim": nope, "qk_rope_head_dim": rope}
            sizes |= {"q_lora_rank": q_rank} if q_rank else {}
    match layer.feed_forward:
        case Dense() | Gated() as ffn:
            sizes["d_ff"] = ffn.d_ff
        case MixtureOfExperts() as moe:
            sizes |= {"n_experts": moe.n_experts, "expert.d_ff": moe.expert.d_ff}
            sizes["n_experts_per_token"] = moe.n_experts_per_token
            sizes |= {"shared_expert.d_ff": moe.shared_expert.d_ff} if moe.shared_expert else {}
    return sizes


def _sizes(spec: Spec) -> Iterator[ModelEntry]:
    """Each size once for each value that layers have."""
    layers = [layer for stack in _stacks(spec).values() for layer in stack.each_layer()]
    counts = [{"n_layers": len(stack.each_layer())} for stack in _stacks(spec).values()]
    found = [*counts, *(sizes_of(spec, layer) for layer in layers)]
    for entry in SIZES:
        values = dict.fromkeys(sizes[entry.name] for sizes in found if entry.name in sizes)
        yield from (ModelEntry(entry, entry.name, value) for value in values)


def _stacks(spec: Spec) -> dict[str, Stack]:
    stacks = {"encoder": spec.encoder, "decoder": spec.decoder}
    return {name: stack for name, stack in stacks.items() if stack is not None}


# ── Weights ───────────────────────────────────────────────────────────────────────────────────
def _weights(spec: Spec) -> Iterator[ModelEntry]:
    """The weights of the model in the order of the glossary; equal layers are one row."""
    names = dict(meta_model(spec).named_parameters())
    shapes: dict[str, Shape] = {
        name.removesuffix(".weight"): tuple(parameter.shape)
        for name, parameter in names.items()
        if not name.endswith(".bias")
    }
    groups: dict[tuple[str, Shape, bool], list[int]] = {}
    for name, shape in shapes.items():
        index = LAYER_INDEX.search(name)
        key = LAYER_INDEX.sub("N", name), shape, f"{name}.bias" in names
        groups.setdefault(key, []).extend([int(index[0])] if index else [])
    for entry in WEIGHTS:
        for (name, shape, bias), layers in groups.items():
            if glossary_name(name) == entry.name:
                yield ModelEntry(entry, name, None, shape, bias, _ranges(layers))
        if entry.name == "lm_head" and _is_tied(spec):
            yield ModelEntry(entry, "embed", None, shapes["embed"], "lm_head.bias" in names)


def glossary_name(name: str) -> str:
    """The name in the glossary, where all stacks are decoders."""
    side, dot, inside = name.partition(".")
    return f"decoder.{inside}" if side == "encoder" and dot else name


def _is_tied(spec: Spec) -> bool:
    return isinstance(spec.head, MaskedHead) or (isinstance(spec.head, LmHead) and spec.head.tied)


def _ranges(indices: list[int]) -> str:
    """Layer indices as ranges: [0, 1, 2, 5] -> 0-2, 5."""
    runs = []
    for _offset, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
        found = [index for _position, index in run]
        runs.append(f"{found[0]}-{found[-1]}" if len(found) > 1 else f"{found[0]}")
    return ", ".join(runs)


# ── Tensors ───────────────────────────────────────────────────────────────────────────────────
def _has(spec: Spec, kind: type) -> bool:
    """Whether the decoder has a mixer of this kind."""
    return spec.decoder is not None and any(isinstance(x.mixer, kind) for x in spec.decoder.layers)


def _gives_logits(spec: Spec) -> bool:
    return isinstance(spec.head, LmHead | MaskedHead)


# Term -> whether a model has it; the others are in every model that has the sizes of their shape.
CONDITIONS: dict[str, Callable[[Spec], bool]] = {
    "causal mask": lambda spec: any(stack.causal for stack in _stacks(spec).values()),
    "encoder memory": lambda spec: len(_stacks(spec)) == 2,
    "KV cache": lambda spec: _has(spec, Attention),
    "latent cache": lambda spec: _has(spec, LatentAttention),
    "logits": _gives_logits,
    "log-probabilities": _gives_logits,
    "sentence embedding": lambda spec: spec.decoder is None,
}


def _tensors(entry: Entry, spec: Spec) -> Iterator[ModelEntry]:
    """A tensor in each stack, one row for layers of equal shapes."""
    condition = CONDITIONS.get(entry.term)
    if condition is not None and not condition(spec):
        return
    in_layer, stacks = entry.name.startswith(LAYER.rstrip(".")), _stacks(spec)
    for side in stacks if in_layer else [*stacks][-1:]:
        groups: dict[Shape, list[int]] = {}
        for index, layer in enumerate(stacks[side].each_layer()):
            if shape := filled(entry.shape, sizes_of(spec, layer)):
                groups.setdefault(shape, []).append(index)
        name = entry.name.replace("decoder", side) if in_layer else entry.name
        for shape, layers in groups.items():
            ranges = _ranges(layers) if in_layer else ""
            yield ModelEntry(entry, name, shape=shape, layers=ranges)


def filled(shape: str, sizes: Sizes) -> Shape | None:
    """A shape with the sizes filled in; None if one of them is unknown.

    >>> filled("(batch, 1, key, kv_lora_rank+qk_rope_head_dim)",
    ...        {"kv_lora_rank": 512, "qk_rope_head_dim": 64})
    ('batch', 1, 'key', 576)
    """
    dimensions: list[int | str] = []
    for dimension in shape.strip("()").split(", "):
        terms = dimension.split("+")
        if dimension in PASS_SIZES:
            dimensions.append(dimension)
        elif all(term in sizes or term.isdigit() for term in terms):
            dimensions.append(sum(sizes.get(term) or int(term) for term in terms))
        else:
            return None
    return tuple(dimensions)
