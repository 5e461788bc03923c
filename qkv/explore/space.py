"""The space of vectors: positions as waves, neighbours of a token, a map of tokens, nearest sentences.

In: a model, a token or a pass. Out: waves, cosines and points in a plane, as values for the page.
Told in docs/explore.md, "Try things".
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.explore.kinds import POSITIONS, as_both
from qkv.explore.numbers import sentence_vectors
from qkv.explore.passes import Pass
from qkv.explore.problem import Problem
from qkv.explore.subject import Subject
from qkv.explore.words import WORDS
from qkv.messages import both
from qkv.model import spec as s
from qkv.model.positions import sinusoids
from qkv.model.turn import frequencies

WAVES = 64  # places that are shown
MAPPED = 150  # points of a map
AROUND = 4  # neighbours of each token that come onto the map

TELLING = {
    "sinusoidal": both(
        "Each component is a wave over the places, from fast to slow: a clock of many hands."
    ),
    "rotary": both(
        "Each pair of components turns at its own speed: shown is the cosine of its angle at each place."
    ),
    "learned": both("A trained vector for each place."),
}


# ---- positions ------------------------------------------------------------------------------------------------------


def wave_numbers(subject: Subject) -> Tensor:
    """(places, components): what is added, what turns, or the learned table."""
    spec, positions = subject.model.spec, stack_of(subject).positions
    n = min(WAVES, subject.longest)
    match spec.positions:
        case s.Sinusoidal(layout=layout):
            return sinusoids(torch.arange(n), spec.d_model, layout).float()
        case s.Rotary():
            return torch.outer(torch.arange(n).double(), speeds(subject)).cos().float()
        case s.Learned(first=first):
            return positions.weight[first : first + n].detach()
    raise Problem(404, "This model has no positions to show.")


def waves(subject: Subject) -> dict[str, Any]:
    """What the waves are."""
    numbers, kind = wave_numbers(subject), subject.model.spec.positions.kind
    formula = POSITIONS[kind][0] if kind in POSITIONS else WORDS["rotation"].formula
    return {
        "kind": kind,
        "title": as_both(WORDS["rotation" if kind == "rotary" else "positions"].title),
        "text": as_both(TELLING[kind]),
        "formula": formula,
        "length": len(numbers),
        "axes": ["place", "component"],
        "frequencies": speeds(subject).tolist(),
        "shape": list(numbers.shape),
        "stack": "encoder" if subject.model.encoder is not None else "decoder",
    }


def speeds(subject: Subject) -> Tensor:
    """Radians a place, for each pair of components; a learned table has none."""
    spec = subject.model.spec
    match spec.positions:
        case s.Sinusoidal():
            return 10_000.0 ** (-torch.arange(0, spec.d_model, 2).double() / spec.d_model)
        case s.Rotary():
            width = getattr(stack_of(subject).positions, "width", 0)
            return torch.tensor(frequencies(spec.positions, width), dtype=torch.float64)
    return torch.empty(0)


def stack_of(subject: Subject) -> Any:
    return subject.model.encoder if subject.model.encoder is not None else subject.model.decoder


# ---- embeddings -----------------------------------------------------------------------------------------------------


def table_of(subject: Subject, side: str) -> Tensor:
    """The token vectors of a side, (vocab, d_model)."""
    if side not in subject.tokenizers:
        raise Problem(404, "This model has no side '{side}'.", side=side[:20])
    model = subject.model
    own = side == "source" and model.source_embed is not None
    return (model.source_embed if own else model.embed).weight.detach()  # type: ignore[union-attr]


def nearest_ids(
    table: Tensor, ids: Sequence[int], k: int
) -> tuple[list[list[int]], list[list[float]]]:
    """For each id the k tokens whose vectors point most nearly the same way, itself apart, and their cosines."""
    own = F.normalize(table[list(ids)].float(), dim=-1)  # (ids, d_model)
    cosines = own @ table.float().T / table.float().norm(dim=-1).clamp(min=1e-8)  # (ids, vocab)
    cosines[torch.arange(len(ids)), list(ids)] = -2
    best = cosines.topk(min(k, len(table) - 1))
    return best.indices.tolist(), best.values.tolist()


def neighbours(subject: Subject, side: str, id: int, k: int) -> dict[str, Any]:
    """A token and its neighbours."""
    table = table_of(subject, side)
    if not 0 <= id < len(table):
        raise Problem(
            404, "There is no token {id}: the vocabulary has {n_table}.", id=id, n_table=len(table)
        )
    (ids,), (cosines,) = nearest_ids(table, [id], k)
    shown = subject.names([id, *ids], side)
    return {
        "id": id,
        "token": shown[0],
        "neighbours": [
            {"id": each, "token": token, "cosine": cosine}
            for each, token, cosine in zip(ids, shown[1:], cosines, strict=True)
        ],
    }


def token_map(one: Pass, side: str) -> dict[str, Any]:
    """The text's tokens and a few neighbours of each, laid out by the two directions in which they differ most."""
    if side not in one.ids:
        raise Problem(404, "This model has no side '{side}'.", side=side[:20])
    table = table_of(one.subject, side)
    here = list(dict.fromkeys(one.ids[side]))[:MAPPED]
    around = nearest_ids(table, here[: MAPPED // AROUND], AROUND)[0]
    ids = list(dict.fromkeys([*here, *(id for row in around for id in row)]))[:MAPPED]
    points, explained = plane(table[ids].float())
    shown = one.subject.names(ids, side)
    return {
        "explained": explained,
        "points": [
            {"id": id, "token": token, "x": x, "y": y, "here": number < len(here)}
            for number, (id, token, (x, y)) in enumerate(
                zip(ids, shown, points.tolist(), strict=True)
            )
        ],
    }


def plane(vectors: Tensor) -> tuple[Tensor, list[float]]:
    """Principal components: the first two coordinates, (points, 2), and the share of the variance each explains."""
    centred = vectors - vectors.mean(dim=0)
    u, size, _ = torch.linalg.svd(centred, full_matrices=False)
    share = size.square() / size.square().sum().clamp(min=1e-12)
    points = F.pad(u * size, (0, max(0, 2 - len(size))))[:, :2]
    return points, F.pad(share, (0, max(0, 2 - len(share))))[:2].tolist()


# ---- sentences ------------------------------------------------------------------------------------------------------


def nearest_sentences(one: Pass, sentences: Sequence[str], vectors: Tensor) -> dict[str, Any]:
    """The sentences by their cosine with that of the pass; `vectors` (sentences, d_model)."""
    own = sentence_vectors(one)[1]
    cosines = F.cosine_similarity(vectors, own[None], dim=-1).tolist() if len(sentences) else []
    order = sorted(zip(cosines, sentences, strict=True), key=lambda pair: -pair[0])
    return {
        "pooling": one.subject.pooling.pooling,
        "nearest": [{"text": text, "cosine": cosine} for cosine, text in order],
    }
