"""Word alignment: which source word each target word comes from, by cross-attention weights.

In: a sentence pair as ids. Out: pairs of words with a weight. The weights are those of the head that guided alignment has trained;
in a model without one, those of the last layer but one, averaged over its heads. Explained in docs/translation.md, "Alignment".
"""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from qkv.model.attention import ExplainedCore
from qkv.model.eval_mode import eval_mode
from qkv.model.explained import put
from qkv.model.guided import AlignmentHead, core_path
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


def align(
    weights: Tensor, source: Sequence[Unit], target: Sequence[Unit], null: bool = False
) -> list[Link]:
    """For each target word the source word of the largest weight; `weights` are (target tokens, source tokens).

    With `null`, a target word that attends most to tokens outside all words (<eos>) has no link, as guided alignment trains it.
    """
    found = linked_words(weights, source, target, null)
    return [
        Link(source[place].text, target[word].text, round(weight, 4))
        for word, place, weight in found
    ]


def linked_words(
    weights: Tensor, source: Sequence[Unit], target: Sequence[Unit], null: bool
) -> list[tuple[int, int, float]]:
    """The same as numbers: target word, source word, weight."""
    if not source:
        return []
    columns = torch.stack(
        [weights[:, one.tokens].sum(dim=1) for one in source], dim=1
    )  # (target tokens, words)
    outside = weights.sum(dim=1) - columns.sum(dim=1)  # (target tokens,)
    links = []
    for number, word in enumerate(target):
        weight, place = columns[word.tokens].mean(dim=0).max(dim=0)
        if not null or weight >= outside[word.tokens].mean():
            links.append((number, int(place), float(weight)))
    return links


def cross_weights(
    model: Transformer,
    source_ids: Sequence[int],
    begun: Sequence[int],
    chosen: AlignmentHead | None = None,
) -> Tensor:
    """The cross-attention weights of the decoder's input `begun` (<bos> first), (target, source), in a forced pass.

    `chosen` is the head to read; without it, the mean of all heads of the last layer but one.
    """
    assert model.decoder is not None
    path = core_path(chosen.layer if chosen else max(0, len(model.decoder.layers) - 2))
    device, kept = model.embed.weight.device, list[Tensor]()
    with eval_mode(model):
        core, ours = ExplainedCore().eval(), apart(model, path)
        put(ours, path, core)
        core.weights.register_forward_hook(lambda module, given, output: kept.append(output))
        memory = ours.encode(torch.tensor([source_ids], device=device))
        ours.decode(torch.tensor([begun], device=device), memory)
    return kept[0][0, chosen.head] if chosen else kept[0][0].mean(dim=0)  # (target, source)


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
    return units(tokenizer.decode(ids), id_spans(tokenizer, ids))


def id_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[int, int]]:
    """The characters that each of these very ids adds to the text of those before it."""
    begun = [tokenizer.decode(ids[: place + 1]).rstrip("\ufffd") for place in range(len(ids))]
    whole = tokenizer.decode(ids)
    leading = len(whole) - len(
        whole.lstrip(" ")
    )  # a prefix space is removed only when a word follows it
    ends = [len(text) if text.strip(" ") else min(len(text), leading) for text in begun]
    return list(zip([0, *ends], ends, strict=False))


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
    return [
        Unit(text[start:end].strip(), group)
        for (start, end), group in zip(bounds, groups, strict=True)
    ]


def unit_spans(text: str, found: Sequence[Unit]) -> list[tuple[int, int]]:
    """Where each unit stands in the text they were made from."""
    spans, end = [], 0
    for unit in found:
        start = text.index(unit.text, end)
        end = start + len(unit.text)
        spans.append((start, end))
    return spans
