"""Beam search tree: every candidate with its log-probability, and the finished hypotheses.

The search is that of generate/beam.py, recorded while it runs. See docs/explore.md.
"""

import math
from typing import Any

import torch
from torch import Tensor

from qkv.engine.stepper import PlainStepper
from qkv.explore.passes import Pass
from qkv.generate.beam import BeamSearch, BeamSearchConfig

MAX_TREE_DEPTH = 12  # new tokens of a generator


class RecordedSearch(BeamSearch):
    """Beam search that keeps the candidates of each step: (live row, token, sum of log-probs)."""

    def __init__(self, config: BeamSearchConfig, limits: Tensor, dtype: torch.dtype):
        super().__init__(config, limits, dtype)
        self.candidates: list[list[tuple[int, int, float]]] = []

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        columns = super()._candidates(logits)
        rows = zip(*(column[0].tolist() for column in columns), strict=True)
        self.candidates.append(list(rows))
        return columns


def beam_tree(pass_: Pass, size: int, alpha: float) -> dict[str, Any]:
    """All candidates of a search as a tree, and its finished hypotheses, as JSON."""
    with pass_.running():
        search = run_search(pass_, config_of(pass_, size, alpha))
    nodes = build_nodes(pass_, search)
    by_ids = {node["ids"]: node for node in nodes}
    hypotheses = []
    for hypothesis in search.hypotheses()[0]:
        node = by_ids[tuple(hypothesis.ids)]
        node["state"] = "finished"
        hypotheses.append(
            {
                "node": node["id"],
                "text": pass_.explored.text_of(hypothesis.ids),
                "log_prob": hypothesis.log_prob,
                "score": hypothesis.score,
            }
        )
    mark_best_path(nodes, hypotheses)
    return {
        "size": size,
        "alpha": alpha,
        "hypotheses": hypotheses,
        "nodes": [{key: value for key, value in node.items() if key != "ids"} for node in nodes],
    }


def config_of(pass_: Pass, size: int, alpha: float) -> BeamSearchConfig:
    """The search's configuration; -1 stands for a special token that the vocabulary lacks."""
    explored = pass_.explored
    special = explored.bos_id, explored.eos_id, explored.tokenizers["target"].pad_id
    bos, eos, pad = (-1 if id is None else id for id in special)
    return BeamSearchConfig(bos, eos, pad, size, alpha)


def run_search(pass_: Pass, config: BeamSearchConfig) -> RecordedSearch:
    """Search for translations of the source, or for continuations of the prompt."""
    explored, ids = pass_.explored, pass_.ids
    if explored.family == "translator":
        limit = min(2 * len(ids["source"]) + 20, pass_.max_tokens, explored.max_len)
    else:
        limit = min(MAX_TREE_DEPTH, explored.max_len - len(ids["target"]))
    limits = torch.tensor([max(1, limit)], device=pass_.device)
    search = RecordedSearch(config, limits, explored.model.embed.weight.dtype)
    search.suppressed = search.suppressed[search.suppressed >= 0]
    stepper = PlainStepper(explored.model)
    logits = (
        stepper.prefill([[config.bos_id]], [ids["source"]])
        if explored.family == "translator"
        else stepper.prefill([ids["target"]])
    )
    while rows := search.advance(logits):
        stepper.reorder(rows)
        logits = stepper.step(search.last_ids)
    return search


def build_nodes(pass_: Pass, search: RecordedSearch) -> list[dict[str, Any]]:
    """The candidates as nodes: children of a live node are candidates of the next step."""
    first = pass_.ids["target"][0 if pass_.explored.family == "translator" else -1]
    root: dict[str, Any] = {
        "id": 0,
        "parent": None,
        "depth": 0,
        "token": pass_.explored.display_tokens([first], "target")[0],
        "token_log_prob": 0.0,
        "log_prob": 0.0,
        "score": 0.0,
        "state": "live",
        "on_best_path": False,
        "ids": (),
    }
    nodes, live = [root], [root]
    for depth, candidates in enumerate(search.candidates, 1):
        next_live: list[dict[str, Any]] = []
        for row, token, log_prob in candidates:
            if log_prob == -math.inf:
                continue
            parent, ends = live[row], token == search.config.eos_id
            is_live = not ends and len(next_live) < search.config.size
            node = {
                "id": len(nodes),
                "parent": parent["id"],
                "depth": depth,
                "token": pass_.explored.display_tokens([token], "target")[0],
                "token_log_prob": log_prob - parent["log_prob"],
                "log_prob": log_prob,
                "score": log_prob / search.config.penalty(depth),
                "state": "live" if is_live else "pruned",
                "on_best_path": False,
                "ids": (*parent["ids"], token),
            }
            nodes.append(node)
            next_live += [node] if is_live else []
        live = next_live
    return nodes


def mark_best_path(nodes: list[dict[str, Any]], hypotheses: list[dict[str, Any]]) -> None:
    """Mark the nodes from the root to the best hypothesis."""
    node_id = hypotheses[0]["node"] if hypotheses else None
    while node_id is not None:
        nodes[node_id]["on_best_path"] = True
        node_id = nodes[node_id]["parent"]
