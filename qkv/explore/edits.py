"""Edits for one pass: ablation of heads, layers, sublayers or positions, and token swaps.

An edit is a string such as "head:decoder.0.attn.3". Hooks and modules are restored afterwards.
See docs/guides/inspect.md.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.explore.explored_model import SIDE_OF, stacks_of
from qkv.model.positions import NoPositions
from qkv.model.transformer import Transformer
from qkv.web.api_errors import ApiError, shortened

PARTS = ("attn", "cross", "ffn")
MAX_EDITS = 256  # of one pass
TOO_LARGE = 1 << 30  # larger than any index


@dataclass(frozen=True, order=True)
class Edit:
    """One edit: its kind and its path, such as ("head", ("decoder", "0", "attn", "3"))."""

    kind: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}:{'.'.join(self.path)}"


def read_edits(model: Transformer, texts: Sequence[str]) -> tuple[Edit, ...]:
    """Parse edits, sorted and without duplicates."""
    if len(texts) > MAX_EDITS:
        raise ApiError(
            422,
            "{n_edits} edits are too many; at most {max_edits}.",
            n_edits=len(texts),
            max_edits=MAX_EDITS,
        )
    return tuple(sorted({read_edit(model, text) for text in texts}))


def read_edit(model: Transformer, text: str) -> Edit:
    """Parse one edit; a part that the model lacks is an error."""
    kind, _, path = text.partition(":")
    edit = Edit(kind, tuple(path.split(".")))
    if not exists(model, edit):
        raise ApiError(422, "This model has no '{edit}' to edit.", edit=shortened(text))
    return edit


def exists(model: Transformer, edit: Edit) -> bool:
    """Whether the model has the part that is edited; a swap is checked when the ids are known."""
    match edit.kind, edit.path:
        case "head", (stack, layer, part, head):
            return parse_index(head) < n_heads_of(branch_of(block_of(model, stack, layer), part))
        case "layer", (stack, layer):
            return block_of(model, stack, layer) is not None
        case "layer", (stack, layer, part):
            return branch_of(block_of(model, stack, layer), part) is not None
        case "positions", (stack,):
            return stack in stacks_of(model)
        case "swap", (side, position, id):
            return side in SIDE_OF.values() and max(map(parse_index, (position, id))) < TOO_LARGE
    return False


def parse_index(text: str) -> int:
    """A non-negative decimal integer; any other text gives TOO_LARGE."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else TOO_LARGE


def block_of(model: Transformer, stack: str, layer: str) -> nn.Module | None:
    """A layer of the model, or None if there is no such layer."""
    layers, index = getattr(stacks_of(model).get(stack), "layers", ()), parse_index(layer)
    return layers[index] if index < len(layers) else None


def branch_of(block: nn.Module | None, part: str) -> nn.Module | None:
    """The branch of a sublayer, or None if there is no such sublayer."""
    return getattr(getattr(block, part, None), "branch", None) if part in PARTS else None


def n_heads_of(branch: nn.Module | None) -> int:
    """The number of attention heads; 0 for other modules."""
    spec = getattr(branch, "heads", None) or getattr(branch, "latent", None)
    return getattr(spec, "n_heads", 0)


@contextmanager
def edited(model: Transformer, edits: Sequence[Edit]) -> Iterator[None]:
    """Apply the edits inside the block; afterwards all hooks and modules are restored."""
    with ExitStack() as restore:
        for edit in edits:
            match edit.kind, edit.path:
                case "head", (stack, layer, part, head):
                    branch = branch_of(block_of(model, stack, layer), part)
                    restore.callback(ablate_head(branch, int(head)).remove)
                case "layer", (stack, layer, *part):
                    for name in part or PARTS:
                        branch = branch_of(block_of(model, stack, layer), name)
                        if branch is not None:
                            restore.callback(branch.register_forward_hook(zero_output).remove)
                case "positions", (stack,):
                    module = stacks_of(model)[stack]
                    restore.callback(setattr, module, "positions", module.positions)
                    module.positions = NoPositions()
        yield


def ablate_head(branch: Any, head: int) -> Any:
    """Zero the head's columns in the input of o_proj: the same as zeroing them in its weight."""
    width = branch.o_proj.in_features // n_heads_of(branch)

    def zero_columns(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        joined = inputs[0].clone()  # (batch, query, heads * d_head)
        joined[..., head * width : (head + 1) * width] = 0
        return (joined,)

    return branch.o_proj.register_forward_pre_hook(zero_columns)


def zero_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Forward hook: the branch adds nothing to the residual stream."""
    return torch.zeros_like(output)


def apply_swaps(ids: Sequence[int], side: str, edits: Sequence[Edit], vocab_size: int) -> list[int]:
    """The ids of this side with the swapped tokens."""
    ids = list(ids)
    for edit in edits:
        if edit.kind == "swap" and edit.path[0] == side:
            position, id = int(edit.path[1]), int(edit.path[2])
            if position >= len(ids) or id >= vocab_size:
                raise ApiError(
                    422,
                    "Token {position} cannot be swapped for id {id}: the text has {n_tokens} tokens"
                    ", the vocabulary {vocab_size}.",
                    position=position,
                    id=id,
                    n_tokens=len(ids),
                    vocab_size=vocab_size,
                )
            ids[position] = id
    return ids
