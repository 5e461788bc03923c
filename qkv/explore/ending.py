"""What the model would say: the likeliest tokens, what each layer would say, a continuation, and all that under edits.

In: a pass and a place. Out: tokens with logits and probabilities, as JSON values.
Told in docs/explore.md, "Try things".
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from qkv.engine.stepper import PlainStepper
from qkv.explore.edits import Edit, swapped
from qkv.explore.kinds import as_both
from qkv.explore.numbers import logits, sentence_vectors
from qkv.explore.passes import Pass
from qkv.explore.problem import Problem
from qkv.explore.story import has_logits
from qkv.generate.config import GenerationConfig
from qkv.generate.loop import Bounds, generate
from qkv.messages import both

COMPARED = 64  # places that a change is shown at
MOST_SAID = 64


def check_place(one: Pass, place: int) -> None:
    """Logits exist at the places of the text, in models that have a vocabulary to choose from."""
    if not has_logits(one):
        raise Problem(404, "This model ends in vectors: it has no scores over a vocabulary.")
    if not 0 <= place < len(one.ids[one.end]):
        raise Problem(
            404,
            "There is no position {place}: the text has {n_ids} tokens.",
            place=place,
            n_ids=len(one.ids[one.end]),
        )


def logits_at(one: Pass, place: int) -> Tensor:
    """The raw scores of every token after this place, (vocab,)."""
    check_place(one, place)
    return logits(one, slice(place, place + 1))[0]


def best(one: Pass, row: Tensor, k: int) -> list[dict[str, Any]]:
    """The k likeliest tokens of a row of logits."""
    scores, ids = row.float().topk(min(k, len(row)))
    chances = row.float().softmax(dim=-1)[ids]
    shown = one.subject.names(ids.tolist(), one.end)
    return [
        {"id": id, "token": token, "logit": score, "p": p}
        for id, token, score, p in zip(
            ids.tolist(), shown, scores.tolist(), chances.tolist(), strict=True
        )
    ]


def top(one: Pass, place: int, k: int) -> dict[str, Any]:
    """The likeliest next tokens after a place."""
    row = logits_at(one, place)
    return {
        "position": place,
        "after": one.subject.shown(one.ids[one.end], one.end)[place],
        "tokens": best(one, row, k),
    }


def lens(one: Pass, place: int, k: int) -> dict[str, Any]:
    """What each layer would say if it were the last: its stream through the final norm and the head."""
    check_place(one, place)
    model = one.subject.model
    name = "encoder" if one.end == "source" else "decoder"
    stack = getattr(model, name)
    starts = [
        one.given[f"{name}.layers.{n}"][0][0, place] for n in range(len(stack.layers))
    ]  # (d_model,) each
    with one.running():
        rows = [model.logits(stack.norm(x[None, None]))[0, 0] for x in starts] + [
            logits_at(one, place)
        ]
    names = ["embedding", *(f"{name}.{n}" for n in range(len(stack.layers)))]
    titles = [
        both("before the first layer"),
        *(both("after layer {n}", n=n + 1) for n in range(len(stack.layers))),
    ]
    return {
        "position": place,
        "layers": [
            {"name": each, "title": as_both(title), "tokens": best(one, row, k)}
            for each, title, row in zip(names, titles, rows, strict=True)
        ],
    }


def say_on(one: Pass, n_tokens: int) -> dict[str, Any] | None:
    """The translation, or how a generator would go on: the likeliest token again and again."""
    family, subject = one.subject.family, one.subject
    if family == "embedder":
        return None
    with one.running():
        if family == "generator":
            ids = continued(one, n_tokens)
        else:
            ids = (
                one.greedy(subject.model.encode(one.row("source")))
                if one.said is None
                else one.said
            )
    before = one.ids["target"] if family == "generator" else ()
    return {
        "text": subject.text_of(ids, before=before),
        "ids": ids,
        "tokens": subject.shown(ids, "target"),
    }


def continued(one: Pass, n_tokens: int) -> list[int]:
    """The greedy continuation, by the model's own decode, which the edits reach."""
    prompt, ends = one.ids["target"], () if one.subject.eos_id is None else (one.subject.eos_id,)
    n_new = min(n_tokens, MOST_SAID, one.subject.longest - len(prompt))
    if n_new < 1:
        return []
    settings = GenerationConfig(temperature=0, seed=0, max_new_tokens=n_new)
    return generate(
        PlainStepper(one.subject.model), [prompt], settings, Bounds(one.subject.longest, ends)
    )[0].ids


# ---- under edits ----------------------------------------------------------------------------------------------------


class Again(Pass):
    """The ids of another pass through the model with more edits."""

    def __init__(self, first: Pass, edits: Sequence[Edit]):
        self.first = first
        super().__init__(first.subject, first.text, sorted({*first.edits, *edits}))

    def _begin_target(self, memory: Any, target: str | None) -> None:
        """The words said before stay, so that places can be compared."""
        self.ids["target"] = swapped(
            self.first.ids["target"], "target", self.edits, self.subject.model.spec.vocab_size
        )


def change(one: Pass, edits: Sequence[Edit]) -> dict[str, Any]:
    """What edits do: before and after, place by place, and what is said."""
    after = Again(one, edits)
    one.summary = one.summary or summary(one)
    return {
        "edits": [str(edit) for edit in edits],
        "before": one.summary,
        "after": summary(after),
        "vector": moved(one, after),
    }


def summary(one: Pass) -> dict[str, Any]:
    """What the model says, and the five likeliest tokens at each place."""
    said = say_on(one, 16)
    if not has_logits(one):
        return {"said": said and said["text"], "positions": []}
    count = min(COMPARED, len(one.ids[one.end]))
    rows = logits(one, slice(0, count))
    return {
        "said": said and said["text"],
        "positions": [
            {"position": place, "top": best(one, row, 5)} for place, row in enumerate(rows)
        ],
    }


def moved(before: Pass, after: Pass) -> dict[str, Any] | None:
    """How far an embedder's vectors have turned: 1 is not at all."""
    if before.subject.family != "embedder":
        return None
    whole = F.cosine_similarity(sentence_vectors(before)[1], sentence_vectors(after)[1], dim=-1)
    each = F.cosine_similarity(
        before.streams["encoder"][0], after.streams["encoder"][0], dim=-1
    )  # (length,)
    return {"cosine": float(whole), "tokens": each.tolist()}
