"""Find the nearest spec that another format supports, and weights that compute the same with it.

Shared by the Hugging Face and GGUF exports. See docs/guides/import-export.md, "Export".
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from qkv.checkpoint.families.config import group_layers
from qkv.checkpoint.names import Weights
from qkv.checkpoint.weights import meta_model
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.model.spec import Attention, Layer, Sinusoidal, Spec

# Weights (out, in) whose second or first dimension is d_model.
READS_D_MODEL = re.compile(r"(embed|([qkv]|up|gate)_proj)\.weight$|^lm_head\.weight$")
WRITES_D_MODEL = re.compile(r"((o|down)_proj|norm)\.(weight|bias)$")


def nearest(
    spec: Spec, targets: Mapping[str, Spec], absorbable: Callable[[str, Any, Any], bool], wrong: str
) -> str:
    """The name of the target that differs least; an error if it does not support all parts.

    `wrong` is the message, not yet translated.
    """
    candidates = []
    for name, target in targets.items():
        gaps = list(differences(asdict(canonical(spec)), asdict(canonical(target))))
        parts = [f"{gap[0]} {gap[1]!r}" for gap in gaps if not absorbable(*gap)]
        candidates.append((name, parts, len(gaps)))
    name, parts, _distance = min(candidates, key=lambda item: (len(item[1]), item[2]))
    refuse_unsupported(parts, wrong, name=name)
    return name


def refuse_unsupported(parts: list[str], wrong: str, **values: str) -> None:
    if parts:
        wrong = _(wrong, parts=listed(parts), **values)
        raise QkvError("model.json", wrong, _("keep this model in the qkv format"))


def canonical(spec: Spec) -> Spec:
    """A normal form to compare specs: equal layers grouped, no dropout."""
    sides = {
        side: replace(stack, layers=group_layers(map(_without_dropout, stack.each_layer())))
        for side in ("encoder", "decoder")
        if (stack := getattr(spec, side))
    }
    return replace(spec, dropout=0.0, **sides)


def _without_dropout(layer: Layer) -> Layer:
    """The layer, once, without dropout of attention weights."""
    mixer, cross = layer.mixer, layer.cross
    mixer = replace(mixer, dropout=0.0) if isinstance(mixer, Attention) else mixer
    cross = replace(cross, dropout=0.0) if cross else None
    return replace(layer, mixer=mixer, cross=cross, repeat=1)


def differences(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The path and both values of every leaf in which two trees differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for name in a:
            yield from differences(a[name], b[name], f"{path}.{name}".lstrip("."))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for index, pair in enumerate(zip(a, b, strict=True)):
            yield from differences(*pair, f"{path}.{index}")
    elif a != b and not (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b)):
        yield path, a, b


def is_absorbable(path: str, native: Any, target: Any) -> bool:
    """Whether a difference can be absorbed into the weights.

    A missing bias is a bias of zeros; another layout of sinusoids is a permutation of d_model.
    """
    if path.endswith("bias"):
        return native is False and target is True and not path.endswith("score_correction_bias")
    return path == "positions.layout" or (path == "token_types" and native == 0)


def target_weights(weights: Weights, spec: Spec, target: Spec) -> Weights:
    """Weights of the target spec that compute the same function."""
    expected = meta_model(target).state_dict()
    dtype = next(iter(weights.values())).dtype
    complete = {
        name: weights[name].cpu() if name in weights else torch.zeros(tensor.shape, dtype=dtype)
        for name, tensor in expected.items()
    }
    differs = isinstance(spec.positions, Sinusoidal) and spec.positions != target.positions
    return permute_d_model(complete, spec.d_model) if differs else complete


def permute_d_model(weights: Weights, d_model: int) -> Weights:
    """Reorder d_model, even dimensions first: sin, cos, ... -> all sin, then all cos."""
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    new = dict(weights)
    for name, weight in weights.items():
        if READS_D_MODEL.search(name):
            new[name] = weight[:, order]
        elif WRITES_D_MODEL.search(name):
            new[name] = weight[order]
    return new
