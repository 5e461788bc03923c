"""A pass: one text run through the model, keeping only the input of each layer.

A layer is run again, step by step, when its activations are requested, so that long texts open
quickly. See docs/guides/inspect.md.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.engine.stepper import PlainStepper
from qkv.errors import QkvError, near_miss
from qkv.explore.edits import Edit, apply_swaps, edited
from qkv.explore.explored_model import SIDE_OF, ExploredModel
from qkv.explore.record import INPUT, matching_paths, record
from qkv.explore.serialize import JsonObject
from qkv.generate.config import GenerationConfig
from qkv.generate.loop import Bounds, generate
from qkv.messages import _
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Memory
from qkv.web.api_errors import ApiError

__all__ = ["Pass"]

MAX_TOKENS = 512
MAX_ACTIVATION_BYTES = 96 << 20  # cached activations of one pass

# Modules whose input is recorded: joined heads, activated feed-forward, residual sum, split heads.
RECORD_INPUT = ("o_proj", "down_proj", "norm", "q_norm", "k_norm")

Activations = dict[str, Any]  # by module path; "path.input" is the module's input


class Pass:
    """The ids of each side, the input of each layer, and the final hidden states of each stack."""

    def __init__(
        self, explored: ExploredModel, text: str, edits: Sequence[Edit], target: str | None = None
    ):
        self.explored, self.model, self.spec = explored, explored.model, explored.spec
        self.text, self.edits = text, tuple(edits)
        self.id = pass_id(text, edits, target)
        self.ids: dict[str, list[int]] = {}
        self.generated: list[int] | None = None  # the translation: ids after <bos>, with <eos>
        self.layer_inputs: dict[str, tuple[Any, ...]] = {}  # "decoder.layers.0" -> x, context, ...
        self.final_states: dict[str, Tensor] = {}  # "decoder" -> (1, length, d_model)
        self.activations: OrderedDict[str, Activations] = OrderedDict()
        self.summary: JsonObject | None = None  # predictions at each position, once requested
        with self.running(), self.keeping_layer_inputs():
            self._run(target)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The model in eval mode, with the edits of this pass."""
        with eval_mode(self.model), edited(self.model, self.edits):
            yield

    def ids_tensor(self, side: str) -> Tensor:
        """The ids of a side as a batch of one, (1, length)."""
        return torch.tensor([self.ids[side]], device=self.model.embed.weight.device)

    @property
    def last_stack(self) -> str:
        """The stack whose final hidden states give the logits."""
        return list(self.explored.stacks)[-1]

    @property
    def logits_side(self) -> str:
        """The side whose positions have logits."""
        return SIDE_OF[self.last_stack]

    # ---- running the model

    def _run(self, target: str | None) -> None:
        memory = None
        if "encoder" in self.explored.stacks:
            self._encode("source", self.text)
            memory = self.model.encode(self.ids_tensor("source"))
            self.final_states["encoder"] = memory.states
        if "decoder" in self.explored.stacks:
            if memory is None:
                self._encode("target", self.text)
            else:
                self._set_target_ids(memory, target)
            self.final_states["decoder"] = self.model.decode(self.ids_tensor("target"), memory)

    def _set_ids(self, side: str, ids: Sequence[int]) -> None:
        """Set the ids of a side, with the swapped tokens."""
        vocab_size = self.explored.embedding(side).num_embeddings
        self.ids[side] = apply_swaps(ids, side, self.edits, vocab_size)

    def _encode(self, side: str, text: str) -> None:
        """Encode a text for this side; a text that is too long or empty is an error."""
        ids = self.explored.encode(text, side)
        if len(ids) > self.max_tokens:
            raise ApiError(
                413,
                "The text has {n_tokens} tokens; at most {max_tokens} can be shown.",
                n_tokens=len(ids),
                max_tokens=self.max_tokens,
            )
        if not ids:
            raise ApiError(422, "The text is empty; type some text.")
        vocab_size = self.explored.embedding(side).num_embeddings
        if max(ids) >= vocab_size:
            raise ApiError(
                422,
                "The tokenizer gives id {id}, but the model's vocabulary has {vocab_size} tokens.",
                id=max(ids),
                vocab_size=vocab_size,
            )
        self._set_ids(side, ids)

    @property
    def max_tokens(self) -> int:
        return min(MAX_TOKENS, self.explored.max_len)

    @property
    def max_target_len(self) -> int:
        """Maximum number of tokens of a translation."""
        return min(2 * len(self.ids["source"]) + 20, self.max_tokens)

    def _set_target_ids(self, memory: Memory, target: str | None) -> None:
        """The given target text, or the greedy translation."""
        if target is not None:
            self._encode("target", target)
            return
        self.generated = self.translate(memory)
        ids = [self.explored.bos_id or 0, *self.generated]
        ends = self.generated[-1:] == [self.explored.eos_id]
        self._set_ids("target", ids[:-1] if ends else ids[: self.max_tokens])

    def translate(self, memory: Memory) -> list[int]:
        """The greedy translation."""
        bos, config = self.explored.bos_id or 0, self.explored.search_config()
        suppressed = {bos, *config.suppressed_ids} - {-1, config.eos_id}
        return self.greedy([bos], self.max_target_len, memory, tuple(suppressed))

    def greedy(
        self,
        prompt: list[int],
        limit: int,
        memory: Memory | None = None,
        suppressed: tuple[int, ...] = (),
    ) -> list[int]:
        """Greedy decoding with the model's own `decode`, to which the edits apply."""
        config = GenerationConfig(
            temperature=0, seed=0, suppress_tokens=suppressed, max_new_tokens=limit
        )
        bounds = Bounds(len(prompt) + limit, (self.explored.search_config().eos_id,))
        return generate(PlainStepper(self.model, memory), [prompt], config, bounds)[0].ids

    @contextmanager
    def keeping_layer_inputs(self) -> Iterator[None]:
        """Keep the inputs of each layer (of several forward passes those of the last, full one)."""

        def keep(path: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self.layer_inputs[path] = inputs[:3]  # without the cache

        with ExitStack() as restore:
            for name, stack in self.explored.stacks.items():
                for n, block in enumerate(stack.layers):
                    hook = partial(keep, f"{name}.layers.{n}")
                    restore.callback(block.register_forward_pre_hook(hook).remove)
            yield

    # ---- logits and activations

    def logits(self, rows: slice = slice(None)) -> Tensor:
        """Logits at these positions, (rows, vocab)."""
        with self.running():
            return self.model.logits(self.final_states[self.last_stack][0][rows])

    def logits_at(self, position: int) -> Tensor:
        """Logits at one position, (vocab,)."""
        return self.logits(slice(position, position + 1))[0]

    def activation(self, path: str) -> Any:
        """The output of a module inside a layer; of "path.input" the module's input."""
        found = self._cached(f"{layer_of(path)}.*")
        if path not in found:
            raise QkvError(path, _("was not recorded"), near_miss(path, found))
        return found[path]

    def weights(self, core: str) -> Tensor:
        """The attention weights of one core, (heads, query, key)."""
        path, all_of_layer = f"{core}.weights", f"{layer_of(core)}.*"
        return self._cached(all_of_layer if all_of_layer in self.activations else path)[path]

    def _record(self, pattern: str) -> Activations:
        """Run a layer again and record those of its modules that match the pattern."""
        outputs = matching_paths(self.model, (pattern,))
        inputs = [path + INPUT for path in outputs if path.rpartition(".")[2] in RECORD_INPUT]
        layer = layer_of(pattern)
        with self.running(), record(self.model, pattern, *inputs) as steps:
            self.model.get_submodule(layer)(*self.layer_inputs[layer])
        return {path: without_batch(value) for path, value in steps.items()}

    def _cached(self, pattern: str) -> Activations:
        """The activations of this pattern; the least recently used ones are dropped."""
        if pattern not in self.activations:
            self.activations[pattern] = self._record(pattern)
            while (
                len(self.activations) > 1
                and sum(map(n_bytes_of, self.activations.values())) > MAX_ACTIVATION_BYTES
            ):
                self.activations.popitem(last=False)
        self.activations.move_to_end(pattern)
        return self.activations[pattern]


def pass_id(text: str, edits: Sequence[Edit], target: str | None) -> str:
    """A hash of the text, the edits and the target."""
    content = json.dumps([text, list(map(str, edits)), target])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def layer_of(path: str) -> str:
    """The layer of a module: layer_of("decoder.layers.0.attn.norm") == "decoder.layers.0"."""
    return ".".join(path.split(".")[:3])


def without_batch(output: Any) -> Any:
    """The only row of a batch of one; a router's outputs have no batch axis."""
    return output[0] if isinstance(output, Tensor) and output.ndim > 2 else output


def n_bytes_of(activations: Activations) -> int:
    tensors = [
        tensor
        for output in activations.values()
        for tensor in (output if isinstance(output, tuple) else [output])
    ]
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
