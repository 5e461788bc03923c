"""Values of the tensors in a trace, computed on request.

Activations inside a layer come from re-running that layer step by step. See docs/guides/inspect.md.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.explore.explored_model import SIDE_OF
from qkv.explore.passes import Pass
from qkv.explore.query_params import Query
from qkv.explore.tensor_view import TensorView
from qkv.explore.trace import all_steps
from qkv.model.attention_context import position_ids_of
from qkv.model.pooling import pool
from qkv.web.api_errors import ApiError, not_found

MAX_ELEMENTS = 4_000_000  # of a tensor sent at once


def view_of(pass_: Pass, name: str) -> TensorView:
    """The tensor of this name."""
    views = {view.name: view for step in all_steps(pass_) for view in step.tensors}
    if name not in views:
        raise not_found(name, views)
    return views[name]


def fetch(pass_: Pass, name: str, query: Query) -> Tensor:
    """The tensor, or one element of its first axis, or a range of rows of either."""
    view, index, rows = view_of(pass_, name), query.index(), query.rows()
    if index is not None and (len(view.shape) < 2 or index >= view.shape[0]):
        raise ApiError(
            422,
            "There is no element {index} in a tensor of shape {shape}.",
            index=index,
            shape=view.shape,
        )
    check_size(select(torch.empty(view.shape, device="meta"), index, rows).numel())
    if view.name == "lm_head":
        return pass_.logits(rows) if index is None else pass_.logits_at(index)
    return select(full_tensor(pass_, view), index, rows)


def select(tensor: Tensor, index: int | None, rows: slice) -> Tensor:
    return (tensor if index is None else tensor[index])[rows]


def check_size(n_elements: int) -> None:
    if n_elements > MAX_ELEMENTS:
        raise ApiError(
            413,
            "{n_elements:,} values are too many for one request; ask for fewer rows.",
            n_elements=n_elements,
        )


def full_tensor(pass_: Pass, view: TensorView) -> Tensor:
    """All values of a tensor of the trace."""
    if view.path.startswith("="):
        return tensor_outside_layers(pass_, view.name)
    output = pass_.activation(view.path)
    return output if view.item is None else output[view.item]


def tensor_outside_layers(pass_: Pass, name: str) -> Tensor:
    """Input of the first layer and its parts, final states, sentence vectors."""
    stack, _, kind = name.partition(".")
    if kind == "norm" or name in pass_.final_states:
        return pass_.final_states[stack][0]
    if kind:
        with pass_.running():
            return input_tensors(pass_, stack)[kind]
    pooled, sentence = sentence_vectors(pass_)
    return pooled if name == "pooling" else sentence


def input_tensors(pass_: Pass, name: str) -> dict[str, Tensor]:
    """The steps from ids to the input of the first layer, each (length, d_model)."""
    model, stack, side = pass_.model, pass_.explored.stacks[name], SIDE_OF[name]
    ids = pass_.ids_tensor(side)[0]
    steps = {"ids": ids, "embedding": pass_.explored.embedding(side).weight[ids]}
    x = steps["scaled"] = steps["embedding"] * model.scale
    if model.type_embed is not None and name == "encoder":
        x = steps["type"] = x + model.type_embed.weight[0]
    x = steps["positions"] = stack.positions(x[None], position_ids_of(len(x), 0, None, x.device))[0]
    steps["embed_norm"] = stack.embed_norm(x)
    return steps


def sentence_vectors(pass_: Pass) -> tuple[Tensor, Tensor]:
    """The pooled vector, and the same normalized if the model normalizes, (d_model,) each."""
    config = pass_.explored.pooling
    with pass_.running():
        pooled = pool(pass_.final_states["encoder"], None, config.pooling)[0]
        return pooled, F.normalize(pooled, dim=-1) if config.normalize else pooled
