"""Next-token predictions: top-k tokens, the logit lens, greedy decoding, the effect of edits.

See docs/explore.md.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from qkv.engine.stepper import PlainStepper
from qkv.explore.api_error import ApiError
from qkv.explore.edits import Edit, apply_swaps
from qkv.explore.kinds import as_both
from qkv.explore.passes import Pass
from qkv.explore.tensor_values import logits, sentence_vectors
from qkv.explore.trace import has_logits
from qkv.generate.config import GenerationConfig
from qkv.generate.loop import Bounds, generate
from qkv.messages import both

MAX_COMPARED_POSITIONS = 64  # at which predictions before and after edits are compared
MAX_NEW_TOKENS = 64


def check_position(pass_: Pass, position: int) -> None:
    """Raise if the model has no language-model head or the text no such position."""
    if not has_logits(pass_):
        raise ApiError(404, "This model has no language-model head, so it has no logits.")
    n_tokens = len(pass_.ids[pass_.logits_side])
    if not 0 <= position < n_tokens:
        raise ApiError(
            404,
            "There is no position {position}: the text has {n_tokens} tokens.",
            position=position,
            n_tokens=n_tokens,
        )


def logits_at(pass_: Pass, position: int) -> Tensor:
    """Logits at a position, (vocab,)."""
    check_position(pass_, position)
    return logits(pass_, slice(position, position + 1))[0]


def top_k(pass_: Pass, row: Tensor, k: int) -> list[dict[str, Any]]:
    """The k most probable tokens of a row of logits, as JSON."""
    scores, ids = row.float().topk(min(k, len(row)))
    probs = row.float().softmax(dim=-1)[ids]
    tokens = pass_.explored.display_separately(ids.tolist(), pass_.logits_side)
    return [
        {"id": id, "token": token, "logit": score, "p": p}
        for id, token, score, p in zip(
            ids.tolist(), tokens, scores.tolist(), probs.tolist(), strict=True
        )
    ]


def top_tokens(pass_: Pass, position: int, k: int) -> dict[str, Any]:
    """The most probable next tokens at a position."""
    row = logits_at(pass_, position)
    side = pass_.logits_side
    return {
        "position": position,
        "after": pass_.explored.display_tokens(pass_.ids[side], side)[position],
        "tokens": top_k(pass_, row, k),
    }


def logit_lens(pass_: Pass, position: int, k: int) -> dict[str, Any]:
    """Logit lens: the residual stream after each layer through the final norm and lm_head."""
    check_position(pass_, position)
    model = pass_.explored.model
    name = "encoder" if pass_.logits_side == "source" else "decoder"
    stack = getattr(model, name)
    layers = range(len(stack.layers))
    streams = [
        pass_.layer_inputs[f"{name}.layers.{n}"][0][0, position] for n in layers
    ]  # (d_model,) each
    with pass_.running():
        rows = [model.logits(stack.norm(x[None, None]))[0, 0] for x in streams] + [
            logits_at(pass_, position)
        ]
    names = ["embedding", *(f"{name}.{n}" for n in layers)]
    titles = [both("before the first layer"), *(both("after layer {n}", n=n + 1) for n in layers)]
    return {
        "position": position,
        "layers": [
            {"name": name, "title": as_both(title), "tokens": top_k(pass_, row, k)}
            for name, title, row in zip(names, titles, rows, strict=True)
        ],
    }


def continuation(pass_: Pass, n_tokens: int) -> dict[str, Any] | None:
    """The greedy translation, or the greedy continuation of a prompt; None for an embedder."""
    family, explored = pass_.explored.family, pass_.explored
    if family == "embedder":
        return None
    with pass_.running():
        if family == "generator":
            ids = continue_prompt(pass_, n_tokens)
        elif pass_.generated is None:
            ids = pass_.greedy(explored.model.encode(pass_.ids_tensor("source")))
        else:
            ids = pass_.generated
    before = pass_.ids["target"] if family == "generator" else ()
    return {
        "text": explored.text_of(ids, before=before),
        "ids": ids,
        "tokens": explored.display_tokens(ids, "target"),
    }


def continue_prompt(pass_: Pass, n_tokens: int) -> list[int]:
    """Greedy decoding with the model's own `decode`, to which the edits apply."""
    explored, prompt = pass_.explored, pass_.ids["target"]
    ends = () if explored.eos_id is None else (explored.eos_id,)
    n_new = min(n_tokens, MAX_NEW_TOKENS, explored.max_len - len(prompt))
    if n_new < 1:
        return []
    config = GenerationConfig(temperature=0, seed=0, max_new_tokens=n_new)
    bounds = Bounds(explored.max_len, ends)
    return generate(PlainStepper(explored.model), [prompt], config, bounds)[0].ids


# ---- effect of edits


class EditedPass(Pass):
    """The ids of another pass through the model with further edits."""

    def __init__(self, first: Pass, edits: Sequence[Edit]):
        self.first = first
        super().__init__(first.explored, first.text, sorted({*first.edits, *edits}))

    def _set_target_ids(self, memory: Any, target: str | None) -> None:
        """The target of the first pass, so that positions can be compared."""
        self.ids["target"] = apply_swaps(
            self.first.ids["target"], "target", self.edits, self.explored.model.spec.vocab_size
        )


def change(pass_: Pass, edits: Sequence[Edit]) -> dict[str, Any]:
    """The effect of edits: output and predictions before and after."""
    after = EditedPass(pass_, edits)
    pass_.summary = pass_.summary or summary(pass_)
    return {
        "edits": [str(edit) for edit in edits],
        "before": pass_.summary,
        "after": summary(after),
        "vector": vector_similarity(pass_, after),
    }


def summary(pass_: Pass) -> dict[str, Any]:
    """The generated text, and the five most probable tokens at each position."""
    generated = continuation(pass_, 16)
    text = generated and generated["text"]
    if not has_logits(pass_):
        return {"generated": text, "positions": []}
    n_positions = min(MAX_COMPARED_POSITIONS, len(pass_.ids[pass_.logits_side]))
    rows = logits(pass_, slice(0, n_positions))
    return {
        "generated": text,
        "positions": [
            {"position": position, "top": top_k(pass_, row, 5)} for position, row in enumerate(rows)
        ],
    }


def vector_similarity(before: Pass, after: Pass) -> dict[str, Any] | None:
    """Cosine similarity of an embedder's vectors before and after edits."""
    if before.explored.family != "embedder":
        return None
    sentence = F.cosine_similarity(sentence_vectors(before)[1], sentence_vectors(after)[1], dim=-1)
    tokens = F.cosine_similarity(
        before.final_states["encoder"][0], after.final_states["encoder"][0], dim=-1
    )  # (length,)
    return {"cosine": float(sentence), "tokens": tokens.tolist()}
