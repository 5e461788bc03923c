"""Which source word each target word comes from, read off the cross-attention.

In: a sentence pair as ids. Out: pairs of words with a weight. Weights are those of the last but one layer, averaged over
its heads: a choice, not a measured one. Told in docs/translation.md, "Alignment".
"""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from qkv.generate.step import at_rest
from qkv.model.attention import ExplainedCore
from qkv.model.explained import put
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.text.words import word_spans

Part = TypeVar("Part", bound=nn.Module)


class Link(NamedTuple):
    """A target word, the source word it looked at most, and the share of its looking."""

    source: str
    target: str
    weight: float


class Unit(NamedTuple):
    """A word as a person sees it, and the tokens that make it up."""

    text: str
    tokens: list[int]


def align(weights: Tensor, source: Sequence[Unit], target: Sequence[Unit]) -> list[Link]:
    """For each target word the source word of the largest weight; `weights` are (target tokens, source tokens)."""
    if not source:
        return []
    columns = torch.stack([weights[:, one.tokens].sum(dim=1) for one in source], dim=1)     # (target tokens, words)
    links = []
    for word in target:
        weight, place = columns[word.tokens].mean(dim=0).max(dim=0)
        links.append(Link(source[int(place)].text, word.text, round(float(weight), 4)))
    return links


def cross_weights(model: Transformer, source_ids: Sequence[int], begun: Sequence[int]) -> Tensor:
    """Where each place of the decoder's input `begun` (<bos> first) looks, (target, source), in a forced pass."""
    assert model.decoder is not None
    path = f"decoder.layers.{max(0, len(model.decoder.layers) - 2)}.cross.branch.core"
    device, kept = model.embed.weight.device, list[Tensor]()
    with at_rest(model):
        core, ours = ExplainedCore().eval(), apart(model, path)
        put(ours, path, core)
        core.weights.register_forward_hook(lambda module, given, output: kept.append(output))
        memory = ours.encode(torch.tensor([source_ids], device=device))
        ours.decode(torch.tensor([begun], device=device), memory)
    return kept[0][0].mean(dim=0)                                                           # over heads


def apart(module: Part, path: str) -> Part:
    """The same module with the same weights, but on the way to `path` its own parts: other threads go on with the old ones."""
    twin = copy(module)
    twin._modules = dict(module._modules)
    name, _, rest = path.partition(".")
    if name:
        setattr(twin, name, apart(module.get_submodule(name), rest))
    return twin


def source_units(tokenizer: Tokenizer, text: str) -> list[Unit]:
    """The words of a source text; tokens count as in encode(text)."""
    return units(text, tokenizer.offsets(text))


def target_units(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Unit]:
    """The words that these very ids say; encoding their text again could give others."""
    ends = [len(tokenizer.decode(ids[: place + 1]).rstrip("\ufffd")) for place in range(len(ids))]
    return units(tokenizer.decode(ids), list(zip([0, *ends], ends, strict=False)))


def units(text: str, spans: Sequence[tuple[int, int]]) -> list[Unit]:
    """Words and tokens brought together: a unit ends where both a word and a token end.

    >>> units("lower 机器", [(0, 3), (3, 5), (5, 8)])
    [Unit(text='lower', tokens=[0, 1]), Unit(text='机器', tokens=[2])]
    """
    starts = {start for start, _ in word_spans(text)}
    groups: list[list[int]] = []
    bounds: list[tuple[int, int]] = []
    for token, (start, end) in enumerate(spans):
        start += len(text[start:end]) - len(text[start:end].lstrip())
        if groups and (start not in starts or start < bounds[-1][1]):
            groups[-1].append(token)
            bounds[-1] = bounds[-1][0], max(bounds[-1][1], end)
        elif start < end:
            groups.append([token])
            bounds.append((start, end))
    return [Unit(text[start:end].strip(), group) for (start, end), group in zip(bounds, groups, strict=True)]
