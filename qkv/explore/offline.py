"""Offline page: an HTML file with the recorded answers to every request about a few texts.

It works without a network. Requests that are not recorded (another text, a swapped token) need the
live page. See docs/guides/inspect.md.
"""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from torch import Tensor

from qkv.errors import QkvError
from qkv.explore.bundle import PAGE, bundle
from qkv.explore.edits import PARTS, branch_of, n_heads_of
from qkv.explore.explorer import Answer, Explorer
from qkv.explore.serialize import JsonObject, finite, to_numpy
from qkv.messages import _
from qkv.text.lines import write_text
from qkv.web.api_errors import ApiError

MAX_TENSOR_BYTES = 96 << 20  # in one file
MAX_RECORDED_EDITS = 200  # each recorded alone


def write_page(explorer: Explorer, texts: Sequence[str], path: str | Path) -> Path:
    """Record these texts and write the file."""
    write_text(path, bundle(PAGE, record_answers(explorer, texts)))
    return Path(path)


def record_answers(explorer: Explorer, texts: Sequence[str]) -> JsonObject:
    """All answers by request name."""
    recorder, passes = AnswerRecorder(explorer), []
    for name in ("model", "positions", "positions/values"):
        recorder.record(name)
    if explorer.explored.family == "embedder":
        explorer.typed_sentences = tuple(dict.fromkeys([*explorer.typed_sentences, *texts]))
    for text in dict.fromkeys(texts):
        try:
            trace = explorer.open(text)
        except ApiError as error:
            raise QkvError(text[:40], error.text()) from None
        passes.append({"text": trace["text"], "id": trace["id"]})
        for name in request_names(explorer, trace):
            recorder.record(name)
    return {
        "version": 1,
        "passes": passes,
        "answers": recorder.answers,
        "tensors": recorder.tensors,
    }


class AnswerRecorder:
    """Records answers by request name; requests that the model does not support are left out."""

    def __init__(self, explorer: Explorer):
        self.explorer = explorer
        self.answers: JsonObject = {}
        self.tensors: JsonObject = {}
        self.n_bytes = 0

    def record(self, name: str) -> None:
        path, _separator, query = name.partition("?")
        if name in self.answers or name in self.tensors:
            return
        try:
            answer = self.explorer.answer(path, dict(parse_qsl(query)))
        except ApiError as error:
            if error.status == 404:
                return
            raise too_large(error.text()) from None
        self.add(name, answer)

    def add(self, name: str, answer: Answer) -> None:
        if not isinstance(answer, Tensor):
            self.answers[name] = finite(answer)
            return
        values = to_numpy(answer)
        self.n_bytes += values.nbytes
        if self.n_bytes > MAX_TENSOR_BYTES:
            raise too_large(_("more than {max_mb} MB of tensors", max_mb=MAX_TENSOR_BYTES >> 20))
        self.tensors[name] = {
            "shape": list(values.shape),
            "dtype": str(values.dtype),
            "data": base64.b64encode(values.tobytes()).decode(),
        }


def too_large(wrong: str) -> QkvError:
    return QkvError("--out", wrong, _("record a shorter text"))


def request_names(explorer: Explorer, trace: JsonObject) -> Iterator[str]:
    """The name of every request that the page may send about a pass."""
    prefix = f"pass/{trace['id']}"
    yield prefix
    for step in trace["steps"]:
        yield from (f"{prefix}/tensor/{tensor['name']}" for tensor in step["tensors"])
    for kind in trace["attention"]:
        for entry in kind["layers"]:
            yield f"{prefix}/attention/{kind['name']}/{entry['layer']}"
            yield f"{prefix}/thumbnails/{kind['name']}/{entry['layer']}"
        yield f"{prefix}/attention/{kind['name']}/mean"
        yield f"{prefix}/rollout/{kind['name']}"
    requests = ("top/{}", "top/{}?k=30", "top/{}?k=200", "logit_lens/{}", "logits/{}")
    for position in range(trace["positions"]):
        yield from (f"{prefix}/{request.format(position)}" for request in requests)
    yield from (f"{prefix}/{name}" for name in ("generate", "beam", "nearest"))
    for side in trace["sides"]:
        yield f"{prefix}/projection/{side}"
        projection = explorer.answer(f"{prefix}/projection/{side}")
        assert isinstance(projection, dict)
        yield from (f"neighbors/{side}/{point['id']}" for point in projection["points"])
    edits = single_edits(explorer)
    if len(edits) <= MAX_RECORDED_EDITS:
        yield from (f"{prefix}/change?edits={edit}" for edit in edits)


def single_edits(explorer: Explorer) -> list[str]:
    """The ablation of each head, sublayer and layer, and of the positions."""
    edits = []
    for name, stack in explorer.explored.stacks.items():
        for layer, block in enumerate(stack.layers):
            edits.append(f"layer:{name}.{layer}")
            for part in PARTS:
                branch = branch_of(block, part)
                edits += [f"layer:{name}.{layer}.{part}"] if branch is not None else []
                heads = range(n_heads_of(branch))
                edits += [f"head:{name}.{layer}.{part}.{head}" for head in heads]
        if explorer.explored.spec.positions.kind != "none":
            edits.append(f"positions:{name}")
    return edits
