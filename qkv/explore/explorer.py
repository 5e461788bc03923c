"""Every answer the page can ask for, by name: the server and the offline file ask the same questions here.

In: a name such as "pass/3f2a/top/4" and its parameters. Out: a JSON value or a tensor. Passes are remembered, a few of
them; the model runs one question at a time. Told in docs/explore.md, "The page".
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from qkv.explore import ending, looking, space
from qkv.explore.edits import read_edits, shortened
from qkv.explore.facts import CHARACTERS, SENTENCES, model_answer
from qkv.explore.numbers import fetch, sentence_vectors
from qkv.explore.passes import Pass, name_of
from qkv.explore.problem import Problem
from qkv.explore.questions import Query, no_such
from qkv.explore.story import all_steps, tell
from qkv.explore.subject import Subject
from qkv.explore.tree import beam_tree

REMEMBERED = 6  # passes

Answer = dict[str, Any] | Tensor


class Explorer:
    """One model that is looked at; `answer` and `open` are all that the page needs."""

    def __init__(self, subject: Subject, sentences: Sequence[str] = ()):
        self.subject = subject
        self.kept = tuple(sentences)  # from a file
        self.typed: tuple[str, ...] = ()  # on the page
        self.passes: OrderedDict[str, Pass] = OrderedDict()
        self.vectors: dict[str, Tensor] = {}
        self.lock = RLock()

    # ---- opening ----------------------------------------------------------------------------------------------------

    def open(
        self, text: str, edits: Sequence[str] = (), target: str | None = None
    ) -> dict[str, Any]:
        """The story of this text; it is run once and then remembered."""
        check_length(text)
        check_length(target or "")
        with self.lock:
            read = read_edits(self.subject.model, edits)
            id = name_of(text, read, target)
            if id not in self.passes:
                self.passes[id] = Pass(self.subject, text, read, target)
            self.passes.move_to_end(id)
            while len(self.passes) > REMEMBERED:
                self.passes.popitem(last=False)
            return tell(self.passes[id])

    def pass_of(self, id: str) -> Pass:
        """A pass that is remembered."""
        if id not in self.passes:
            raise Problem(404, "This text is no longer remembered: open it again.")
        self.passes.move_to_end(id)
        return self.passes[id]

    def compare_with(self, sentences: Sequence[str]) -> dict[str, Any]:
        """The typed sentences that nearest ones are sought among."""
        if len(sentences) > SENTENCES:
            raise Problem(
                413,
                "{n_sentences} sentences are too many; at most {sentences}.",
                n_sentences=len(sentences),
                sentences=SENTENCES,
            )
        for each in sentences:
            check_length(each)
        with self.lock:
            for each in sentences:
                self.vector(each)  # what cannot be read is refused here
            self.typed = tuple(sentences)
        return {"count": len(self.typed)}

    def tokens_of(self, text: str, side: str) -> dict[str, Any]:
        """What a typed text is in tokens."""
        check_length(text)
        if side not in self.subject.tokenizers:
            raise Problem(422, "This model has no side '{side}'.", side=shortened(side))
        begin, end = (len(part) for part in self.subject.around(side))
        ids = self.subject.read(text, side)
        ids = ids[begin : len(ids) - end]
        return {
            "tokens": [
                {"id": id, "token": token}
                for id, token in zip(ids, self.subject.shown(ids, side), strict=True)
            ]
        }

    def vector(self, sentence: str) -> Tensor:
        """The sentence vector, (d_model,); worked out once."""
        self.check_compares()
        if sentence not in self.vectors:
            self.vectors[sentence] = sentence_vectors(Pass(self.subject, sentence, ()))[1]
        return self.vectors[sentence]

    def check_compares(self) -> None:
        if self.subject.family != "embedder":
            raise Problem(404, "Only an encoder compares sentences.")

    # ---- answering --------------------------------------------------------------------------------------------------

    def answer(self, name: str, parameters: Mapping[str, str] | None = None) -> Answer:
        """What stands under this name."""
        query = Query(parameters or {})
        for pattern, give in ROUTES:
            found = re.fullmatch(pattern, name, re.ASCII)
            if found:
                with self.lock, torch.inference_mode():
                    return give(self, *found.groups(), query)
        raise no_such(name)

    def tensor(self, id: str, name: str, query: Query) -> Tensor:
        one = self.pass_of(id)
        shown = next(
            (each for step in all_steps(one) for each in step.tensors if each.name == name), None
        )
        if shown is None:
            raise no_such(name)
        return fetch(one, shown, query.index(), query.rows())

    def nearest(self, id: str, query: Query) -> dict[str, Any]:
        self.check_compares()
        one = self.pass_of(id)
        sentences = list(dict.fromkeys([*self.typed, *self.kept]))
        rows = [self.vector(each) for each in sentences]
        self.vectors = {
            each: self.vectors[each] for each in sentences
        }  # what was typed before is forgotten
        return space.nearest_sentences(
            one, sentences, torch.stack(rows) if rows else torch.empty(0, 1)
        )

    def change(self, id: str, query: Query) -> dict[str, Any]:
        return ending.change(self.pass_of(id), read_edits(self.subject.model, query.edits()))

    def logits(self, id: str, place: str, query: Query) -> Tensor:
        one, edits = self.pass_of(id), read_edits(self.subject.model, query.edits())
        return ending.logits_at(ending.Again(one, edits) if edits else one, int(place))

    def say(self, id: str, query: Query) -> dict[str, Any]:
        said = ending.say_on(self.pass_of(id), query.whole("tokens", 16, 1, ending.MOST_SAID))
        if said is None:
            raise Problem(404, "This model gives vectors, it does not speak.")
        return said

    def beam(self, id: str, query: Query) -> dict[str, Any]:
        one = self.pass_of(id)
        if one.subject.family == "embedder":
            raise Problem(404, "This model gives vectors, it does not speak.")
        ending.check_place(one, 0)
        return beam_tree(one, query.whole("size", 4, 1, 8), query.real("alpha", 0.6, 0, 5))


def check_length(text: str) -> None:
    if len(text) > CHARACTERS:
        raise Problem(
            413,
            "The text has {n_text:,} characters; at most {characters:,} are read.",
            n_text=len(text),
            characters=CHARACTERS,
        )


_ID, _N, _WHICH = r"pass/([0-9a-f]{12})", r"(\d{1,6})", r"(encoder|decoder|cross)"
ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    ("model", lambda self, query: model_answer(self.subject)),
    (_ID, lambda self, id, query: tell(self.pass_of(id))),
    (rf"{_ID}/tensor/([a-z0-9_.]{{1,80}})", Explorer.tensor),
    (
        rf"{_ID}/attention/{_WHICH}/{_N}(?:/(\w{{1,6}}))?",
        lambda self, id, which, layer, head, query: looking.chosen_head(
            looking.weights(self.pass_of(id), which, int(layer)), head
        ),
    ),
    (
        rf"{_ID}/attention/{_WHICH}/mean",
        lambda self, id, which, query: looking.whole_mean(self.pass_of(id), which),
    ),
    (
        rf"{_ID}/words/{_WHICH}/{_N}(?:/(\w{{1,6}}))?",
        lambda self, id, which, layer, head, query: looking.chosen_head(
            looking.word_weights(self.pass_of(id), which, int(layer)), head
        ),
    ),
    (
        rf"{_ID}/thumbs/{_WHICH}/{_N}",
        lambda self, id, which, layer, query: looking.thumbs(self.pass_of(id), which, int(layer)),
    ),
    (
        rf"{_ID}/rollout/{_WHICH}",
        lambda self, id, which, query: looking.rollout(self.pass_of(id), which),
    ),
    (
        rf"{_ID}/top/{_N}",
        lambda self, id, place, query: ending.top(
            self.pass_of(id), int(place), query.whole("k", 10, 1, 200)
        ),
    ),
    (
        rf"{_ID}/lens/{_N}",
        lambda self, id, place, query: ending.lens(
            self.pass_of(id), int(place), query.whole("k", 5, 1, 50)
        ),
    ),
    (rf"{_ID}/logits/{_N}", Explorer.logits),
    (rf"{_ID}/say", Explorer.say),
    (rf"{_ID}/beam", Explorer.beam),
    (rf"{_ID}/change", Explorer.change),
    (
        rf"{_ID}/map/(source|target)",
        lambda self, id, side, query: space.token_map(self.pass_of(id), side),
    ),
    (rf"{_ID}/nearest", Explorer.nearest),
    ("waves", lambda self, query: space.waves(self.subject)),
    ("waves/numbers", lambda self, query: space.wave_numbers(self.subject)),
    (
        r"neighbours/(source|target)/(\d{1,9})",
        lambda self, side, id, query: space.neighbours(
            self.subject, side, int(id), query.whole("k", 12, 1, 200)
        ),
    ),
]
