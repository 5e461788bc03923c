"""The beam tree: every way that a search looked at, and why one of them won.

In: a pass. Out: nodes with their log-probabilities and what became of them, and the finished sentences by score. The
search is generate/beam.py's own, watched while it runs. Told in docs/explore.md, "Try things".
"""

import math
from typing import Any

import torch
from torch import Tensor

from qkv.engine.stepper import PlainStepper
from qkv.explore.passes import Pass
from qkv.generate.beam import BeamRules, Search

DEEP = 12  # tokens that a generator's tree goes down


class WatchedSearch(Search):
    """The search, keeping every candidate it weighs: for each step the live row it prolongs, the token, the sum."""

    def __init__(self, rules: BeamRules, limits: Tensor, dtype: torch.dtype):
        super().__init__(rules, limits, dtype)
        self.weighed: list[list[tuple[int, int, float]]] = []

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = super()._candidates(logits)
        self.weighed.append(list(zip(*(column[0].tolist() for column in found), strict=True)))
        return found


def beam_tree(one: Pass, size: int, alpha: float) -> dict[str, Any]:
    """All candidates of a search as a tree, and the sentences it found."""
    with one.running():
        search = run(one, rules_of(one, size, alpha))
    nodes = grow(one, search)
    found = search.finished.hypotheses()[0]
    ways = {node["ids"]: node for node in nodes}
    hypotheses = []
    for each in found:
        node = ways[tuple(each.ids)]
        node["state"] = "finished"
        hypotheses.append(
            {
                "node": node["id"],
                "text": one.subject.text_of(each.ids),
                "log_prob": each.log_prob,
                "score": each.score,
            }
        )
    mark_winner(nodes, hypotheses)
    return {
        "size": size,
        "alpha": alpha,
        "hypotheses": hypotheses,
        "nodes": [{key: value for key, value in node.items() if key != "ids"} for node in nodes],
    }


def rules_of(one: Pass, size: int, alpha: float) -> BeamRules:
    """-1 is no token: a vocabulary without <eos>, <bos> or <pad> still searches."""
    known = one.subject.bos_id, one.subject.eos_id, one.subject.tokenizers["target"].pad_id
    bos, eos, pad = (-1 if id is None else id for id in known)
    return BeamRules(bos, eos, pad, size, alpha)


def run(one: Pass, rules: BeamRules) -> WatchedSearch:
    """Search from the source, or from what was typed."""
    model, translates = one.subject.model, one.subject.family == "translator"
    longest = min(2 * len(one.ids["source"]) + 20, one.most_tokens) if translates else DEEP
    room = one.subject.longest - (0 if translates else len(one.ids["target"]))
    search = WatchedSearch(
        rules,
        torch.tensor([max(1, min(longest, room))], device=one.device),
        model.embed.weight.dtype,
    )
    search.suppressed = search.suppressed[search.suppressed >= 0]
    stepper = PlainStepper(model)
    logits = (
        stepper.prefill([[rules.bos_id]], [one.ids["source"]])
        if translates
        else stepper.prefill([one.ids["target"]])
    )
    while rows := search.advance(logits):
        stepper.reorder(rows)
        logits = stepper.step(search.last_ids)
    return search


def grow(one: Pass, search: WatchedSearch) -> list[dict[str, Any]]:
    """The candidates as nodes: those that live on are prolonged by the next step's candidates."""
    first = one.ids["target"][0 if one.subject.family == "translator" else -1]
    root: dict[str, Any] = {
        "id": 0,
        "parent": None,
        "depth": 0,
        "token": one.subject.shown([first], "target")[0],
        "gain": 0.0,
        "log_prob": 0.0,
        "score": 0.0,
        "state": "live",
        "wins": False,
        "ids": (),
    }
    nodes, live = [root], [root]
    for depth, candidates in enumerate(search.weighed, 1):
        following: list[dict[str, Any]] = []
        for parent, token, log_prob in candidates:
            if log_prob == -math.inf:
                continue
            above, ends = live[parent], token == search.rules.eos_id
            lives = not ends and len(following) < search.rules.size
            node = {
                "id": len(nodes),
                "parent": above["id"],
                "depth": depth,
                "gain": log_prob - above["log_prob"],
                "token": one.subject.shown([token], "target")[0],
                "log_prob": log_prob,
                "score": log_prob / search.rules.penalty(depth),
                "state": "live" if lives else "dropped",
                "wins": False,
                "ids": (*above["ids"], token),
            }
            nodes.append(node)
            following += [node] if lives else []
        live = following
    return nodes


def mark_winner(nodes: list[dict[str, Any]], hypotheses: list[dict[str, Any]]) -> None:
    """The way from the root to the best."""
    at = hypotheses[0]["node"] if hypotheses else None
    while at is not None:
        nodes[at]["wins"] = True
        at = nodes[at]["parent"]
