"""The page as one file: everything it may ask about a few texts is recorded in it.

In: an explorer and texts. Out: an HTML file that works from the disk with the network off, with the same views; only
what nobody recorded (another text, a swapped token) needs the live page. Told in docs/explore.md, "One file".
"""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.errors import QkvError
from qkv.explore.bundle import bundle
from qkv.explore.edits import PARTS, branch_of, heads_of
from qkv.explore.explorer import Answer, Explorer
from qkv.explore.numerals import as_numbers, finite
from qkv.explore.problem import Problem
from qkv.messages import _
from qkv.text.lines import write_text

PAGE = Path(__file__).parent / "page"
MOST_BYTES = 96 << 20  # of numbers in one file
MOST_EDITS = 200  # recorded one by one


def write_page(explorer: Explorer, texts: Sequence[str], path: str | Path) -> Path:
    """Record these texts and write the file."""
    write_text(path, bundle(PAGE, recorded(explorer, texts)))
    return Path(path)


def recorded(explorer: Explorer, texts: Sequence[str]) -> dict[str, Any]:
    """All answers by their names, as the page asks for them."""
    book = Book(explorer)
    for name in ("model", "waves", "waves/numbers"):
        book.write(name)
    if explorer.subject.family == "embedder":
        explorer.typed = tuple(dict.fromkeys([*explorer.typed, *texts]))
    for text in dict.fromkeys(texts):
        try:
            story = explorer.open(text)
        except Problem as problem:
            raise QkvError(text[:40], problem.text()) from None
        book.passes.append({"text": story["text"], "id": story["id"]})
        for name in names_of(explorer, story):
            book.write(name)
    return {"version": 1, "passes": book.passes, "answers": book.answers, "tensors": book.tensors}


class Book:
    """Answers as they come; what a model does not have stays out."""

    def __init__(self, explorer: Explorer):
        self.explorer = explorer
        self.passes: list[dict[str, str]] = []
        self.answers: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.bytes = 0

    def write(self, name: str) -> None:
        path, _mark, query = name.partition("?")
        if name in self.answers or name in self.tensors:
            return
        try:
            answer = self.explorer.answer(
                path, dict(pair.split("=", 1) for pair in query.split("&") if pair)
            )
        except Problem as problem:
            if problem.status == 404:
                return
            raise too_much(problem.text()) from None
        self.keep(name, answer)

    def keep(self, name: str, answer: Answer) -> None:
        if not isinstance(answer, Tensor):
            self.answers[name] = finite(answer)
            return
        numbers = as_numbers(answer)
        self.bytes += numbers.nbytes
        if self.bytes > MOST_BYTES:
            raise too_much(_("more than {most_bytes} MB of numbers", most_bytes=MOST_BYTES >> 20))
        self.tensors[name] = {
            "shape": list(numbers.shape),
            "dtype": str(numbers.dtype),
            "data": base64.b64encode(numbers.tobytes()).decode(),
        }


def too_much(wrong: str) -> QkvError:
    return QkvError("--out", wrong, _("record a shorter text"))


def names_of(explorer: Explorer, story: dict[str, Any]) -> Iterator[str]:
    """Everything the page may ask about a pass."""
    this = f"pass/{story['id']}"
    yield this
    yield from (
        f"{this}/tensor/{tensor['name']}" for step in story["steps"] for tensor in step["tensors"]
    )
    for kind in story["attention"]:
        for each in kind["layers"]:
            yield f"{this}/attention/{kind['name']}/{each['layer']}"
            yield f"{this}/thumbs/{kind['name']}/{each['layer']}"
        yield f"{this}/attention/{kind['name']}/mean"
        yield f"{this}/rollout/{kind['name']}"
    for place in range(story["positions"]):
        yield from (
            f"{this}/top/{place}",
            f"{this}/top/{place}?k=30",
            f"{this}/top/{place}?k=200",
            f"{this}/lens/{place}",
            f"{this}/logits/{place}",
        )
    yield from (f"{this}/{what}" for what in ("say", "beam", "nearest"))
    for side in story["sides"]:
        yield f"{this}/map/{side}"
        points = explorer.answer(f"{this}/map/{side}")
        assert isinstance(points, dict)
        yield from (f"neighbours/{side}/{point['id']}" for point in points["points"])
    edits = single_edits(explorer)
    yield from (f"{this}/change?edits={edit}" for edit in edits if len(edits) <= MOST_EDITS)


def single_edits(explorer: Explorer) -> list[str]:
    """Every head, branch and layer that can be switched off alone, and the positions."""
    model, edits = explorer.subject.model, []
    for name in ("encoder", "decoder"):
        stack = getattr(model, name)
        for layer in range(len(stack.layers) if stack is not None else 0):
            edits.append(f"layer:{name}.{layer}")
            for part in PARTS:
                branch = branch_of(model, name, str(layer), part)
                edits += [f"layer:{name}.{layer}.{part}"] if branch is not None else []
                edits += [f"head:{name}.{layer}.{part}.{head}" for head in range(heads_of(branch))]
        edits += (
            [f"positions:{name}"]
            if stack is not None and model.spec.positions.kind != "none"
            else []
        )
    return edits
