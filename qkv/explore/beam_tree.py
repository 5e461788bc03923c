"""Beam search tree: every candidate with its log-probability, and the finished hypotheses.

The search is that of generate/beam.py, recorded while it runs. See docs/guides/inspect.md.
"""

import math
from typing import Any

from torch import Tensor

from qkv.engine.stepper import PlainStepper
from qkv.explore.passes import Pass
from qkv.explore.serialize import JsonObject
from qkv.generate.beam import BeamSearch, BeamSearchConfig

MAX_TREE_DEPTH = 12  # new tokens of a generator

Ids = tuple[int, ...]  # of the tokens from the root to a node


class RecordedSearch(BeamSearch):
    """Beam search that keeps the candidates of each step: (live row, token, sum of log-probs)."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.candidates: list[list[tuple[int, int, float]]] = []

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        columns = super()._candidates(logits)
        self.candidates.append(list(zip(*(column[0].tolist() for column in columns), strict=True)))
        return columns


def beam_tree(pass_: Pass, size: int, alpha: float) -> JsonObject:
    """All candidates of a search as a tree, and its finished hypotheses, as JSON."""
    with pass_.running():
        search = run_search(pass_, pass_.explored.search_config(size, alpha))
    nodes, finished = build_nodes(pass_, search), search.sentences[0].finished
    for hypothesis in finished:
        nodes[tuple(hypothesis.ids)]["state"] = "finished"
    for best in finished[:1]:
        for depth in range(len(best.ids) + 1):
            nodes[tuple(best.ids[:depth])]["on_best_path"] = True
    return {
        "size": size,
        "alpha": alpha,
        "hypotheses": [
            {
                "node": nodes[tuple(hypothesis.ids)]["id"],
                "text": pass_.explored.text_of(hypothesis.ids),
                "log_prob": hypothesis.log_prob,
                "score": hypothesis.score,
            }
            for hypothesis in finished
        ],
        "nodes": list(nodes.values()),
    }


def run_search(pass_: Pass, config: BeamSearchConfig) -> RecordedSearch:
    """Search for translations of the source, or for continuations of the prompt."""
    prompt, sources = pass_.ids["target"], None
    limit = min(MAX_TREE_DEPTH, pass_.explored.max_len - len(prompt))
    if pass_.explored.family == "translator":
        prompt, sources, limit = [config.bos_id], [pass_.ids["source"]], pass_.max_target_len
    search = RecordedSearch(config, [max(1, limit)], pass_.model.embed.weight)
    search.suppressed = search.suppressed[search.suppressed >= 0]
    stepper = PlainStepper(pass_.model)
    logits = stepper.prefill([prompt], sources)
    while rows := search.advance(logits):
        stepper.reorder(rows)
        logits = stepper.step(search.last_ids)
    return search


def build_nodes(pass_: Pass, search: RecordedSearch) -> dict[Ids, JsonObject]:
    """The candidates by their ids: children of a live node are candidates of the next step."""
    nodes: dict[Ids, JsonObject] = {}

    def add(ids: Ids, token: int, log_prob: float, state: str) -> None:
        parent = nodes.get(ids[:-1], {"id": None, "log_prob": 0.0})
        nodes[ids] = {
            "id": len(nodes),
            "parent": parent["id"],
            "depth": len(ids),
            "token": pass_.explored.display_tokens([token], "target")[0],
            "token_log_prob": log_prob - parent["log_prob"],
            "log_prob": log_prob,
            "score": log_prob / search.config.penalty(len(ids)),
            "state": state,
            "on_best_path": False,
        }

    first = 0 if pass_.explored.family == "translator" else -1
    add((), pass_.ids["target"][first], 0.0, "live")
    live: list[Ids] = [()]
    for candidates in search.candidates:
        parents, live = live, []
        for row, token, log_prob in candidates:
            if log_prob == -math.inf:
                continue
            ids = (*parents[row], token)
            is_live = token != search.config.eos_id and len(live) < search.config.size
            add(ids, token, log_prob, "live" if is_live else "pruned")
            live += [ids] if is_live else []
    return nodes
