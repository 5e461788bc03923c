"""Word alignment: the source word of each target word, by cross-attention weights.

The weights are those of the head that guided alignment has trained; in a model without one, the
mean over the heads of the last layer but one. See docs/guides/translation.md, "Word alignment".
"""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from qkv.model.attention import EagerCore
from qkv.model.eager_core import set_submodule
from qkv.model.eval_mode import eval_mode
from qkv.model.guided import AlignmentHead, core_path
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.text.word_boundaries import word_spans

__all__ = ["Link", "cross_weights"]

ModuleType = TypeVar("ModuleType", bound=nn.Module)


class Link(NamedTuple):
    """A link of a word alignment.

    >>> Link("三", "three", 0.93).weight
    0.93

    Attributes:
        source: The source word that the target word attends to most.
        target: The target word.
        weight: The attention weight.
    """

    source: str
    target: str
    weight: float


class Unit(NamedTuple):
    """A word, and the indices of its tokens."""

    text: str
    tokens: list[int]


def align(
    weights: Tensor, source: Sequence[Unit], target: Sequence[Unit], null: bool = False
) -> list[Link]:
    """Link each target word to the source word of the largest attention weight.

    Args:
        weights: (target tokens, source tokens).
        source: The source words.
        target: The target words.
        null: Give no link to a target word that attends most to tokens outside all words (<eos>),
            as guided alignment trains it.
    """
    return [
        Link(source[source_index].text, target[target_index].text, round(weight, 4))
        for target_index, source_index, weight in linked_words(weights, source, target, null)
    ]


def linked_words(
    weights: Tensor, source: Sequence[Unit], target: Sequence[Unit], null: bool
) -> list[tuple[int, int, float]]:
    """As `align`, with word indices: (target word, source word, weight)."""
    if not source:
        return []
    columns = [weights[:, unit.tokens].sum(dim=1) for unit in source]
    by_word = torch.stack(columns, dim=1)  # (target tokens, source words)
    outside = weights.sum(dim=1) - by_word.sum(dim=1)  # (target tokens,)
    links = []
    for target_index, unit in enumerate(target):
        weight, source_index = by_word[unit.tokens].mean(dim=0).max(dim=0)
        if not null or weight >= outside[unit.tokens].mean():
            links.append((target_index, int(source_index), float(weight)))
    return links


def cross_weights(
    model: Transformer,
    source_ids: Sequence[int],
    decoder_ids: Sequence[int],
    head: AlignmentHead | None = None,
) -> Tensor:
    """Cross-attention weights (target, source) in a forced pass.

    Args:
        model: An encoder-decoder.
        source_ids: The encoder's input.
        decoder_ids: The decoder's input, <bos> first.
        head: The attention head to read; None: the mean over the heads of the last layer but one.
    """
    assert model.decoder is not None
    path = core_path(head.layer if head else default_layer(model))
    device, recorded = model.embed.weight.device, list[Tensor]()
    with eval_mode(model):
        core, clone = EagerCore().eval(), clone_path(model, path)
        set_submodule(clone, path, core)
        core.weights.register_forward_hook(lambda module, inputs, output: recorded.append(output))
        memory = clone.encode(torch.tensor([source_ids], device=device))
        clone.decode(torch.tensor([decoder_ids], device=device), memory)
    return recorded[0][0, head.head] if head else recorded[0][0].mean(dim=0)  # (target, source)


def default_layer(model: Transformer) -> int:
    """The layer that word alignment reads without guided alignment: the last but one."""
    assert model.decoder is not None
    return max(0, len(model.decoder.layers) - 2)


def clone_path(module: ModuleType, path: str) -> ModuleType:
    """Shallow-copy a module and its submodules along `path`; all weights are shared.

    The clone's submodule at `path` can be replaced while other threads use the original.
    """
    clone = copy(module)
    clone._modules = dict(module._modules)
    name, _, rest = path.partition(".")
    if name:
        setattr(clone, name, clone_path(module.get_submodule(name), rest))
    return clone


def source_units(tokenizer: Tokenizer, text: str) -> list[Unit]:
    """The words of a source text; token indices are those of encode(text)."""
    return units(text, tokenizer.offsets(text))


def target_units(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Unit]:
    """The words of generated ids; encoding their text again could give other ids."""
    return units(tokenizer.decode(ids), id_spans(tokenizer, ids))


def id_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[int, int]]:
    """The span of characters that each id adds to the text of those before it."""
    prefixes = [tokenizer.decode(ids[: n + 1]).rstrip("\ufffd") for n in range(len(ids))]
    text = tokenizer.decode(ids)
    # A prefix space is removed only when a word follows it.
    leading = len(text) - len(text.lstrip(" "))
    ends = [len(prefix) if prefix.strip(" ") else min(len(prefix), leading) for prefix in prefixes]
    return list(zip([0, *ends], ends, strict=False))


def units(text: str, spans: Sequence[tuple[int, int]]) -> list[Unit]:
    """Group tokens into words: a unit ends where both a word and a token end.

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
    return [
        Unit(text[start:end].strip(), group)
        for (start, end), group in zip(bounds, groups, strict=True)
    ]


def unit_spans(text: str, units: Sequence[Unit]) -> list[tuple[int, int]]:
    """The character span of each unit in its text."""
    spans, end = [], 0
    for unit in units:
        start = text.index(unit.text, end)
        end = start + len(unit.text)
        spans.append((start, end))
    return spans
