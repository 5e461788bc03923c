"""Explorer: answers every request of the page by name, for the server and for the offline file.

A name such as "pass/3f2a/top/4" with its parameters gives a JSON value or a tensor. The last few
passes are cached; requests run one at a time. See docs/guides/inspect.md.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from qkv.explore.attention_views import mean_over_layers, rollout, thumbnails, weights, word_weights
from qkv.explore.beam_tree import beam_tree
from qkv.explore.edits import read_edits
from qkv.explore.embeddings import (
    nearest_sentences,
    neighbors,
    position_encodings,
    position_values,
    project_tokens,
)
from qkv.explore.explored_model import ExploredModel
from qkv.explore.metadata import MAX_CHARACTERS, MAX_SENTENCES, model_metadata
from qkv.explore.passes import Pass, pass_id
from qkv.explore.predictions import (
    MAX_NEW_TOKENS,
    change,
    check_position,
    continuation,
    logit_lens,
    logits_at,
    top_tokens,
)
from qkv.explore.query_params import Query
from qkv.explore.serialize import JsonObject
from qkv.explore.tensor_values import fetch, sentence_vectors
from qkv.explore.trace import make_trace
from qkv.messages import N_
from qkv.web.api_errors import ApiError, not_found, shortened

MAX_PASSES = 6  # cached

Answer = JsonObject | Tensor
Respond = Callable[..., Answer]


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

    def open(self, text: str, edits: Sequence[str] = (), target: str | None = None) -> JsonObject:
        """The trace of this text; the model runs once, then the pass is cached."""
        check_length(text)
        check_length(target or "")
        with self.lock:
            parsed = read_edits(self.explored.model, edits)
            id = pass_id(text, parsed, target)
            if id not in self.passes:
                self.passes[id] = Pass(self.explored, text, parsed, target)
            if len(self.passes) > MAX_PASSES:
                self.passes.popitem(last=False)
            return make_trace(self.pass_of(id))

    def pass_of(self, id: str) -> Pass:
        """A cached pass."""
        if id not in self.passes:
            raise ApiError(404, "This text is no longer cached; open it again.")
        self.passes.move_to_end(id)
        return self.passes[id]

    def compare_with(self, sentences: Sequence[str]) -> JsonObject:
        """Set the typed sentences among which the nearest ones are searched."""
        if len(sentences) > MAX_SENTENCES:
            wrong = N_("{n_sentences} sentences are too many; at most {max_sentences}.")
            raise ApiError(413, wrong, n_sentences=len(sentences), max_sentences=MAX_SENTENCES)
        for sentence in sentences:
            check_length(sentence)
        with self.lock:
            for sentence in sentences:
                self.vector(sentence)  # raises if a sentence cannot be encoded
            self.typed_sentences = tuple(sentences)
        return {"count": len(self.typed_sentences)}

    def tokens_of(self, text: str, side: str) -> JsonObject:
        """The tokens of a text, without special tokens before and after it."""
        check_length(text)
        if side not in self.explored.tokenizers:
            raise ApiError(422, "This model has no side '{side}'.", side=shortened(side))
        ids = self.explored.encode_plain(text, side)
        tokens = zip(ids, self.explored.display_tokens(ids, side), strict=True)
        return {"tokens": [{"id": id, "token": token} for id, token in tokens]}

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
        for pattern, respond in ROUTES.items():
            if match := re.fullmatch(pattern, name, re.ASCII):
                groups = {
                    group: int(text) if group in INTEGER_GROUPS else text
                    for group, text in match.groupdict().items()
                }
                with self.lock, torch.inference_mode():
                    return respond(self, query, **groups)
        raise not_found(name)

    def nearest(self, query: Query, pass_id: str) -> JsonObject:
        self.check_embedder()
        pass_, sentences = self.pass_of(pass_id), [*self.typed_sentences, *self.file_sentences]
        # Vectors of sentences typed earlier are dropped from the cache.
        self.vectors = {sentence: self.vector(sentence) for sentence in sentences}
        return nearest_sentences(pass_, self.vectors)

    def generate(self, query: Query, pass_id: str) -> JsonObject:
        self.check_generates()
        n_tokens = query.integer("tokens", 16, 1, MAX_NEW_TOKENS)
        generated = continuation(self.pass_of(pass_id), n_tokens)
        assert generated is not None
        return generated

    def beam(self, query: Query, pass_id: str) -> JsonObject:
        self.check_generates()
        pass_ = self.pass_of(pass_id)
        check_position(pass_, 0)
        return beam_tree(pass_, query.integer("size", 4, 1, 8), query.number("alpha", 0.6, 0, 5))


def check_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        wrong = N_(
            "The text has {n_characters:,} characters; at most {max_characters:,} are allowed."
        )
        raise ApiError(413, wrong, n_characters=len(text), max_characters=MAX_CHARACTERS)


def of_pass(respond: Respond, **params: Callable[[Query], Any]) -> Respond:
    """The response to a request about a cached pass; `params` are read from the query."""
    return lambda self, query, pass_id, **groups: respond(
        self.pass_of(pass_id), **groups, **{name: read(query) for name, read in params.items()}
    )


# Patterns of request names: a group is an argument of the response.
INTEGER_GROUPS = ("layer", "position", "id")
_PASS, _KIND = r"pass/(?P<pass_id>[0-9a-f]{12})", r"(?P<kind>encoder|decoder|cross)"
_LAYER, _POSITION = r"(?P<layer>\d{1,6})", r"(?P<position>\d{1,6})"
_HEAD, _SIDE = r"(?:/(?P<head>\w{1,6}))?", r"(?P<side>source|target)"
ROUTES: dict[str, Respond] = {
    _PASS: of_pass(make_trace),
    rf"{_PASS}/tensor/(?P<name>[a-z0-9_.]{{1,80}})": of_pass(fetch, query=lambda query: query),
    rf"{_PASS}/attention/{_KIND}/{_LAYER}{_HEAD}": of_pass(weights),
    rf"{_PASS}/attention/{_KIND}/mean": of_pass(mean_over_layers),
    rf"{_PASS}/words/{_KIND}/{_LAYER}{_HEAD}": of_pass(word_weights),
    rf"{_PASS}/thumbnails/{_KIND}/{_LAYER}": of_pass(thumbnails),
    rf"{_PASS}/rollout/{_KIND}": of_pass(rollout),
    rf"{_PASS}/top/{_POSITION}": of_pass(
        top_tokens, k=lambda query: query.integer("k", 10, 1, 200)
    ),
    rf"{_PASS}/logit_lens/{_POSITION}": of_pass(
        logit_lens, k=lambda query: query.integer("k", 5, 1, 50)
    ),
    rf"{_PASS}/logits/{_POSITION}": of_pass(logits_at, edits=Query.edits),
    rf"{_PASS}/change": of_pass(change, edits=Query.edits),
    rf"{_PASS}/projection/{_SIDE}": of_pass(project_tokens),
    rf"{_PASS}/generate": Explorer.generate,
    rf"{_PASS}/beam": Explorer.beam,
    rf"{_PASS}/nearest": Explorer.nearest,
    "model": lambda self, query: model_metadata(self.explored),
    "positions": lambda self, query: position_encodings(self.explored),
    "positions/values": lambda self, query: position_values(self.explored),
    rf"neighbors/{_SIDE}/(?P<id>\d{{1,9}})": lambda self, query, side, id: neighbors(
        self.explored, side, id, query.integer("k", 12, 1, 200)
    ),
}
