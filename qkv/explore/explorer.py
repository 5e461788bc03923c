"""Explorer: answers every request of the page by name, for the server and for the offline file.

A name such as "pass/3f2a/top/4" with its parameters gives a JSON value or a tensor. The last few
passes are cached; requests run one at a time. See docs/explore.md.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from qkv.explore import attention_views, embeddings, predictions
from qkv.explore.api_error import ApiError
from qkv.explore.beam_tree import beam_tree
from qkv.explore.edits import read_edits, shortened
from qkv.explore.explored_model import ExploredModel
from qkv.explore.metadata import MAX_CHARACTERS, MAX_SENTENCES, model_metadata
from qkv.explore.passes import Pass, pass_id
from qkv.explore.query_params import Query, not_found
from qkv.explore.tensor_values import fetch, sentence_vectors
from qkv.explore.trace import all_steps, make_trace

MAX_PASSES = 6  # cached

Answer = dict[str, Any] | Tensor


class Explorer:
    """One explored model; the page calls `open` and `answer`."""

    def __init__(self, explored: ExploredModel, sentences: Sequence[str] = ()):
        self.explored = explored
        self.file_sentences = tuple(sentences)
        self.typed_sentences: tuple[str, ...] = ()
        self.passes: OrderedDict[str, Pass] = OrderedDict()
        self.vectors: dict[str, Tensor] = {}
        self.lock = RLock()

    # ---- opening a text

    def open(
        self, text: str, edits: Sequence[str] = (), target: str | None = None
    ) -> dict[str, Any]:
        """The trace of this text; the model runs once, then the pass is cached."""
        check_length(text)
        check_length(target or "")
        with self.lock:
            parsed = read_edits(self.explored.model, edits)
            id = pass_id(text, parsed, target)
            if id not in self.passes:
                self.passes[id] = Pass(self.explored, text, parsed, target)
            self.passes.move_to_end(id)
            while len(self.passes) > MAX_PASSES:
                self.passes.popitem(last=False)
            return make_trace(self.passes[id])

    def pass_of(self, id: str) -> Pass:
        """A cached pass."""
        if id not in self.passes:
            raise ApiError(404, "This text is no longer cached; open it again.")
        self.passes.move_to_end(id)
        return self.passes[id]

    def compare_with(self, sentences: Sequence[str]) -> dict[str, Any]:
        """Set the typed sentences among which the nearest ones are searched."""
        if len(sentences) > MAX_SENTENCES:
            raise ApiError(
                413,
                "{n_sentences} sentences are too many; at most {max_sentences}.",
                n_sentences=len(sentences),
                max_sentences=MAX_SENTENCES,
            )
        for sentence in sentences:
            check_length(sentence)
        with self.lock:
            for sentence in sentences:
                self.vector(sentence)  # raises if a sentence cannot be encoded
            self.typed_sentences = tuple(sentences)
        return {"count": len(self.typed_sentences)}

    def tokens_of(self, text: str, side: str) -> dict[str, Any]:
        """The tokens of a text, without special tokens before and after it."""
        check_length(text)
        if side not in self.explored.tokenizers:
            raise ApiError(422, "This model has no side '{side}'.", side=shortened(side))
        before, after = (len(part) for part in self.explored.special_tokens(side))
        ids = self.explored.encode(text, side)
        ids = ids[before : len(ids) - after]
        tokens = self.explored.display_tokens(ids, side)
        return {
            "tokens": [{"id": id, "token": token} for id, token in zip(ids, tokens, strict=True)]
        }

    def vector(self, sentence: str) -> Tensor:
        """The sentence vector, (d_model,), cached."""
        self.check_embedder()
        if sentence not in self.vectors:
            self.vectors[sentence] = sentence_vectors(Pass(self.explored, sentence, ()))[1]
        return self.vectors[sentence]

    def check_embedder(self) -> None:
        if self.explored.family != "embedder":
            raise ApiError(404, "Sentences can only be compared with an encoder-only model.")

    def check_generates(self) -> None:
        if self.explored.family == "embedder":
            raise ApiError(404, "Encoder-only model: it cannot generate text.")

    # ---- answering requests

    def answer(self, name: str, parameters: Mapping[str, str] | None = None) -> Answer:
        """The answer to a request by name."""
        query = Query(parameters or {})
        for pattern, respond in ROUTES:
            match = re.fullmatch(pattern, name, re.ASCII)
            if match:
                with self.lock, torch.inference_mode():
                    return respond(self, *match.groups(), query)
        raise not_found(name)

    def tensor(self, id: str, name: str, query: Query) -> Tensor:
        pass_ = self.pass_of(id)
        views = (view for step in all_steps(pass_) for view in step.tensors)
        view = next((view for view in views if view.name == name), None)
        if view is None:
            raise not_found(name)
        return fetch(pass_, view, query.index(), query.rows())

    def nearest(self, id: str, query: Query) -> dict[str, Any]:
        self.check_embedder()
        pass_ = self.pass_of(id)
        sentences = list(dict.fromkeys([*self.typed_sentences, *self.file_sentences]))
        rows = [self.vector(sentence) for sentence in sentences]
        # Vectors of sentences typed earlier are dropped from the cache.
        self.vectors = {sentence: self.vectors[sentence] for sentence in sentences}
        return embeddings.nearest_sentences(
            pass_, sentences, torch.stack(rows) if rows else torch.empty(0, 1)
        )

    def change(self, id: str, query: Query) -> dict[str, Any]:
        return predictions.change(self.pass_of(id), read_edits(self.explored.model, query.edits()))

    def logits(self, id: str, position: str, query: Query) -> Tensor:
        pass_, edits = self.pass_of(id), read_edits(self.explored.model, query.edits())
        pass_ = predictions.EditedPass(pass_, edits) if edits else pass_
        return predictions.logits_at(pass_, int(position))

    def generate(self, id: str, query: Query) -> dict[str, Any]:
        self.check_generates()
        n_tokens = query.integer("tokens", 16, 1, predictions.MAX_NEW_TOKENS)
        generated = predictions.continuation(self.pass_of(id), n_tokens)
        assert generated is not None
        return generated

    def beam(self, id: str, query: Query) -> dict[str, Any]:
        self.check_generates()
        pass_ = self.pass_of(id)
        predictions.check_position(pass_, 0)
        return beam_tree(pass_, query.integer("size", 4, 1, 8), query.number("alpha", 0.6, 0, 5))


def check_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ApiError(
            413,
            "The text has {n_characters:,} characters; at most {max_characters:,} are allowed.",
            n_characters=len(text),
            max_characters=MAX_CHARACTERS,
        )


_ID, _N, _KIND = r"pass/([0-9a-f]{12})", r"(\d{1,6})", r"(encoder|decoder|cross)"
ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    ("model", lambda self, query: model_metadata(self.explored)),
    (_ID, lambda self, id, query: make_trace(self.pass_of(id))),
    (rf"{_ID}/tensor/([a-z0-9_.]{{1,80}})", Explorer.tensor),
    (
        rf"{_ID}/attention/{_KIND}/{_N}(?:/(\w{{1,6}}))?",
        lambda self, id, kind, layer, head, query: attention_views.select_head(
            attention_views.weights(self.pass_of(id), kind, int(layer)), head
        ),
    ),
    (
        rf"{_ID}/attention/{_KIND}/mean",
        lambda self, id, kind, query: attention_views.mean_over_layers(self.pass_of(id), kind),
    ),
    (
        rf"{_ID}/words/{_KIND}/{_N}(?:/(\w{{1,6}}))?",
        lambda self, id, kind, layer, head, query: attention_views.select_head(
            attention_views.word_weights(self.pass_of(id), kind, int(layer)), head
        ),
    ),
    (
        rf"{_ID}/thumbnails/{_KIND}/{_N}",
        lambda self, id, kind, layer, query: attention_views.thumbnails(
            self.pass_of(id), kind, int(layer)
        ),
    ),
    (
        rf"{_ID}/rollout/{_KIND}",
        lambda self, id, kind, query: attention_views.rollout(self.pass_of(id), kind),
    ),
    (
        rf"{_ID}/top/{_N}",
        lambda self, id, position, query: predictions.top_tokens(
            self.pass_of(id), int(position), query.integer("k", 10, 1, 200)
        ),
    ),
    (
        rf"{_ID}/logit_lens/{_N}",
        lambda self, id, position, query: predictions.logit_lens(
            self.pass_of(id), int(position), query.integer("k", 5, 1, 50)
        ),
    ),
    (rf"{_ID}/logits/{_N}", Explorer.logits),
    (rf"{_ID}/generate", Explorer.generate),
    (rf"{_ID}/beam", Explorer.beam),
    (rf"{_ID}/change", Explorer.change),
    (
        rf"{_ID}/projection/(source|target)",
        lambda self, id, side, query: embeddings.project_tokens(self.pass_of(id), side),
    ),
    (rf"{_ID}/nearest", Explorer.nearest),
    ("positions", lambda self, query: embeddings.position_encodings(self.explored)),
    ("positions/values", lambda self, query: embeddings.position_values(self.explored)),
    (
        r"neighbors/(source|target)/(\d{1,9})",
        lambda self, side, id, query: embeddings.neighbors(
            self.explored, side, int(id), query.integer("k", 12, 1, 200)
        ),
    ),
]
