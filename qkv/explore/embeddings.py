"""Embedding space: position encodings, nearest tokens, a PCA projection, nearest sentences.

See docs/guides/inspect.md.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.explore.explored_model import ExploredModel, stacks_of
from qkv.explore.kinds import POSITIONS
from qkv.explore.passes import Pass
from qkv.explore.serialize import JsonObject
from qkv.explore.step_texts import STEP_TEXTS
from qkv.explore.tensor_values import sentence_vectors
from qkv.messages import both
from qkv.model import spec as s
from qkv.model.alibi import slopes
from qkv.model.positions import sinusoids
from qkv.model.rotary import frequencies
from qkv.web.api_errors import ApiError

MAX_POSITIONS = 64  # of the position encodings shown
MAX_POINTS = 150  # of a projection
NEIGHBORS_PER_TOKEN = 4  # in a projection

POSITION_TEXTS = {
    "sinusoidal": both("Each component is a sine or cosine of the position; frequencies decrease."),
    "rotary": both(
        "Each pair of components is rotated at its own frequency; shown is the cosine of the angle"
        " at each position."
    ),
    "learned": both("A trained vector for each position."),
    "alibi": both("What each head adds to the score of a key at a distance: -slope * distance."),
}
STEP_OF = {"rotary": "rotation", "alibi": "alibi"}  # the others: "positions"


# ---- position encodings


def position_values(explored: ExploredModel) -> Tensor:
    """(positions, components): sinusoids, cosines of the rotary angles, or the learned table.

    For ALiBi the bias of each head at a distance, (distances, heads).
    """
    spec, n = explored.spec, min(MAX_POSITIONS, explored.max_len)
    match spec.positions:
        case s.Sinusoidal(layout=layout):
            return sinusoids(torch.arange(n), spec.d_model, layout).float()
        case s.Rotary():
            return torch.outer(torch.arange(n).double(), frequencies_of(explored)).cos().float()
        case s.Learned(first=first):
            return first_positions(explored).weight[first : first + n].detach()
        case s.ALiBi():
            return torch.outer(torch.arange(n).double(), -frequencies_of(explored)).float()
    raise ApiError(404, "This model has no position encodings.")


def position_encodings(explored: ExploredModel) -> JsonObject:
    """Description of the position encodings, as JSON."""
    values, kind = position_values(explored), explored.spec.positions.kind
    step = STEP_TEXTS[STEP_OF.get(kind, "positions")]
    return {
        "kind": kind,
        "title": step.title._asdict(),
        "text": POSITION_TEXTS[kind]._asdict(),
        "formula": POSITIONS.get(kind, (step.formula,))[0],
        "length": len(values),
        "axes": ["distance", "head"] if kind == "alibi" else ["position", "component"],
        "frequencies": frequencies_of(explored).tolist(),
        "shape": list(values.shape),
        "stack": next(iter(explored.stacks)),
    }


def frequencies_of(explored: ExploredModel) -> Tensor:
    """Radians per position for each pair of components; the slope of each head (ALiBi).

    Empty for a learned table.
    """
    spec = explored.spec
    match spec.positions:
        case s.Sinusoidal():
            return 10_000.0 ** (-torch.arange(0, spec.d_model, 2).double() / spec.d_model)
        case s.Rotary():
            width = getattr(first_positions(explored), "width", 0)
            return torch.tensor(frequencies(spec.positions, width), dtype=torch.float64)
        case s.ALiBi():
            layers = next(iter(stacks_of(spec).values())).layers
            heads = [getattr(layer.mixer, "n_heads", 0) for layer in layers]
            return torch.tensor(slopes(max(heads)) if max(heads) else [], dtype=torch.float64)
    return torch.empty(0)


def first_positions(explored: ExploredModel) -> Any:
    """The positions of the encoder, or of the decoder of a model without one."""
    return next(iter(explored.stacks.values())).positions


# ---- token embeddings


def table_of(explored: ExploredModel, side: str) -> Tensor:
    """The token embeddings of a side, (vocab, d_model)."""
    if side not in explored.tokenizers:
        raise ApiError(404, "This model has no side '{side}'.", side=side)
    return explored.embedding(side).weight.detach()


def nearest_ids(table: Tensor, ids: list[int], k: int) -> tuple[list[list[int]], list[list[float]]]:
    """For each id the k other tokens of the largest cosine similarity, and the cosines."""
    table = table.float()
    own = F.normalize(table[ids], dim=-1)  # (ids, d_model)
    cosines = own @ table.T / table.norm(dim=-1).clamp(min=1e-8)  # (ids, vocab)
    cosines[range(len(ids)), ids] = -2
    top = cosines.topk(min(k, len(table) - 1))
    return top.indices.tolist(), top.values.tolist()


def neighbors(explored: ExploredModel, side: str, id: int, k: int) -> JsonObject:
    """A token and its nearest neighbors, as JSON."""
    table = table_of(explored, side)
    if id >= len(table):
        raise ApiError(
            404,
            "There is no token {id}: the vocabulary has {vocab_size} tokens.",
            id=id,
            vocab_size=len(table),
        )
    (ids,), (cosines,) = nearest_ids(table, [id], k)
    (own,) = explored.token_rows([id], side)
    return {**own, "neighbors": explored.token_rows(ids, side, cosine=cosines)}


def nearest_to_sum(
    explored: ExploredModel, side: str, plus: list[int], minus: list[int], k: int
) -> list[JsonObject]:
    """The k tokens nearest to the sum of unit vectors, `plus` minus `minus`, without these tokens.

    Mikolov et al. 2013 (3CosAdd): king - man + woman is near queen.
    """
    table = F.normalize(table_of(explored, side).float(), dim=-1)  # (vocab, d_model)
    wanted = table[plus].sum(dim=0) - table[minus].sum(dim=0)  # (d_model,)
    cosines = table @ F.normalize(wanted, dim=-1)  # (vocab,)
    given = list({*plus, *minus})
    cosines[given] = -2
    top = cosines.topk(min(k, len(table) - len(given)))
    return explored.token_rows(top.indices.tolist(), side, cosine=top.values.tolist())


def project_tokens(pass_: Pass, side: str) -> JsonObject:
    """The text's tokens and some neighbors of each on their first two principal components."""
    table = table_of(pass_.explored, side)
    own = list(dict.fromkeys(pass_.ids[side]))[:MAX_POINTS]
    near = nearest_ids(table, own[: MAX_POINTS // NEIGHBORS_PER_TOKEN], NEIGHBORS_PER_TOKEN)[0]
    ids = list(dict.fromkeys([*own, *(id for row in near for id in row)]))[:MAX_POINTS]
    points, explained = principal_components(table[ids].float())
    x, y = points.T.tolist()
    in_text = [index < len(own) for index in range(len(ids))]
    rows = pass_.explored.token_rows(ids, side, x=x, y=y, in_text=in_text)
    return {"explained": explained, "points": rows}


def principal_components(vectors: Tensor) -> tuple[Tensor, list[float]]:
    """PCA: the first two coordinates, (points, 2), and the fraction of the variance of each."""
    centered = vectors - vectors.mean(dim=0)
    u, size, _ = torch.linalg.svd(centered, full_matrices=False)
    fraction = size.square() / size.square().sum().clamp(min=1e-12)
    to_two = (0, 2 - len(size))  # a negative padding crops
    return F.pad(u * size, to_two), F.pad(fraction, to_two).tolist()


# ---- sentences


def nearest_sentences(pass_: Pass, vectors: Mapping[str, Tensor]) -> JsonObject:
    """Sentences by cosine similarity to that of the pass; `vectors`: (d_model,) of each."""
    own = sentence_vectors(pass_)[1]
    rows = list(vectors.values())
    cosines = F.cosine_similarity(torch.stack(rows), own[None], dim=-1).tolist() if rows else []
    order = sorted(zip(cosines, vectors, strict=True), key=lambda pair: -pair[0])
    return {
        "pooling": pass_.explored.pooling.pooling,
        "nearest": [{"text": text, "cosine": cosine} for cosine, text in order],
    }
