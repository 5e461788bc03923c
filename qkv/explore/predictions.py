"""Next-token predictions: top-k tokens, the logit lens, greedy decoding, the effect of edits.

See docs/guides/inspect.md.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from qkv.explore.edits import Edit, read_edits
from qkv.explore.passes import Pass
from qkv.explore.serialize import JsonObject
from qkv.explore.tensor_values import sentence_vectors
from qkv.messages import both
from qkv.web.api_errors import ApiError

MAX_COMPARED_POSITIONS = 64  # at which predictions before and after edits are compared
MAX_NEW_TOKENS = 64


def check_position(pass_: Pass, position: int) -> None:
    """Raise if the model has no language-model head or the text no such position."""
    if not pass_.explored.has_logits:
        raise ApiError(404, "This model has no language-model head, so it has no logits.")
    n_tokens = len(pass_.ids[pass_.logits_side])
    if position >= n_tokens:
        raise ApiError(
            404,
            "There is no position {position}: the text has {n_tokens} tokens.",
            position=position,
            n_tokens=n_tokens,
        )


def logits_at(pass_: Pass, position: int, edits: Sequence[str] = ()) -> Tensor:
    """Logits at a position, (vocab,), after further edits."""
    parsed = read_edits(pass_.model, edits)
    pass_ = EditedPass(pass_, parsed) if parsed else pass_
    check_position(pass_, position)
    return pass_.logits_at(position)


def top_k(pass_: Pass, row: Tensor, k: int) -> list[JsonObject]:
    """The k most probable tokens of a row of logits, as JSON."""
    scores, ids = row.float().topk(min(k, len(row)))
    probs = row.float().softmax(dim=-1)[ids]
    return pass_.explored.token_rows(
        ids.tolist(), pass_.logits_side, logit=scores.tolist(), p=probs.tolist()
    )


def top_tokens(pass_: Pass, position: int, k: int) -> JsonObject:
    """The most probable next tokens at a position."""
    row, side = logits_at(pass_, position), pass_.logits_side
    return {
        "position": position,
        "after": pass_.explored.display_tokens(pass_.ids[side], side)[position],
        "tokens": top_k(pass_, row, k),
    }


def logit_lens(pass_: Pass, position: int, k: int) -> JsonObject:
    """Logit lens: the residual stream after each layer through the final norm and lm_head."""
    check_position(pass_, position)
    name = pass_.last_stack
    stack = pass_.explored.stacks[name]
    layers = range(len(stack.layers))
    # (d_model,) each
    streams = [pass_.layer_inputs[f"{name}.layers.{n}"][0][0, position] for n in layers]
    with pass_.running():
        rows = [pass_.model.logits(stack.norm(x[None, None]))[0, 0] for x in streams]
    names = ["embedding", *(f"{name}.layers.{n}" for n in layers)]
    titles = [both("before the first layer"), *(both("after layer {n}", n=n) for n in layers)]
    rows.append(pass_.logits_at(position))
    return {
        "position": position,
        "layers": [
            {"name": name, "title": title._asdict(), "tokens": top_k(pass_, row, k)}
            for name, title, row in zip(names, titles, rows, strict=True)
        ],
    }


def continuation(pass_: Pass, n_tokens: int) -> JsonObject | None:
    """The greedy translation, or the greedy continuation of a prompt; None for an embedder."""
    explored, before = pass_.explored, list[int]()
    if explored.family == "embedder":
        return None
    with pass_.running():
        if explored.family == "generator":
            before = pass_.ids["target"]
            n_new = min(n_tokens, explored.max_len - len(before))
            ids = pass_.greedy(before, n_new) if n_new > 0 else []
        elif pass_.generated is None:
            ids = pass_.translate(pass_.model.encode(pass_.ids_tensor("source")))
        else:
            ids = pass_.generated
    return {
        "text": explored.text_of(ids, before),
        "ids": ids,
        "tokens": explored.display_tokens(ids, "target"),
    }


# ---- effect of edits


class EditedPass(Pass):
    """The ids of another pass through the model with further edits."""

    def __init__(self, first: Pass, edits: Sequence[Edit]):
        self.first = first
        super().__init__(first.explored, first.text, sorted({*first.edits, *edits}))

    def _set_target_ids(self, memory: Any, target: str | None) -> None:
        """The target of the first pass, so that positions can be compared."""
        self._set_ids("target", self.first.ids["target"])


def change(pass_: Pass, edits: Sequence[str]) -> JsonObject:
    """The effect of edits: output and predictions before and after."""
    parsed = read_edits(pass_.model, edits)
    after = EditedPass(pass_, parsed)
    pass_.summary = pass_.summary or summary(pass_)
    return {
        "edits": list(map(str, parsed)),
        "before": pass_.summary,
        "after": summary(after),
        "vector": vector_similarity(pass_, after),
    }


def summary(pass_: Pass) -> JsonObject:
    """The generated text, and the five most probable tokens at each position."""
    generated, compared = continuation(pass_, 16), slice(MAX_COMPARED_POSITIONS)
    rows = pass_.logits(compared) if pass_.explored.has_logits else ()
    return {
        "generated": generated and generated["text"],
        "positions": [
            {"position": position, "top": top_k(pass_, row, 5)} for position, row in enumerate(rows)
        ],
    }


def vector_similarity(before: Pass, after: Pass) -> JsonObject | None:
    """Cosine similarity of an embedder's vectors before and after edits."""
    if before.explored.family != "embedder":
        return None
    sentence = F.cosine_similarity(sentence_vectors(before)[1], sentence_vectors(after)[1], dim=-1)
    tokens = F.cosine_similarity(
        before.final_states["encoder"][0], after.final_states["encoder"][0], dim=-1
    )  # (length,)
    return {"cosine": float(sentence), "tokens": tokens.tolist()}
