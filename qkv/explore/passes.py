"""A pass: one text run through the model, keeping only the input of each layer.

A layer is run again, step by step, when its activations are requested, so that long texts open
quickly. See docs/explore.md.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.engine.stepper import PlainStepper
from qkv.explore.api_error import ApiError
from qkv.explore.edits import Edit, apply_swaps, edited
from qkv.explore.explored_model import ExploredModel
from qkv.explore.record import record
from qkv.generate.config import GenerationConfig
from qkv.generate.decode import suppressed_ids
from qkv.generate.loop import Bounds, generate
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Memory

MAX_TOKENS = 512
MAX_ACTIVATION_BYTES = 96 << 20  # cached activations of one pass

# Modules whose input is recorded: joined heads, activated feed-forward, residual sum, split heads.
RECORD_INPUT = ("o_proj", "down_proj", "norm", "q_norm", "k_norm")


class Pass:
    """The ids of each side, the input of each layer, and the final hidden states of each stack."""

    def __init__(
        self, explored: ExploredModel, text: str, edits: Sequence[Edit], target: str | None = None
    ):
        self.explored, self.text, self.edits = explored, text, tuple(edits)
        self.id = pass_id(text, edits, target)
        self.ids: dict[str, list[int]] = {}
        self.generated: list[int] | None = None  # the translation: ids after <bos>, with <eos>
        self.layer_inputs: dict[str, tuple[Any, ...]] = {}  # "decoder.layers.0" -> x, context, ...
        self.final_states: dict[str, Tensor] = {}  # "decoder" -> (1, length, d_model)
        self.activations: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.summary: dict[str, Any] | None = None  # predictions at each position, once requested
        with self.running(), self.keeping_layer_inputs():
            self._run(target)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The model in eval mode, with the edits of this pass."""
        with eval_mode(self.explored.model), edited(self.explored.model, self.edits):
            yield

    @property
    def device(self) -> torch.device:
        return self.explored.model.embed.weight.device

    def ids_tensor(self, side: str) -> Tensor:
        """The ids of a side as a batch of one, (1, length)."""
        return torch.tensor([self.ids[side]], device=self.device)

    @property
    def logits_side(self) -> str:
        """The side whose positions have logits."""
        return "source" if self.explored.family == "embedder" else "target"

    # ---- running the model

    def _run(self, target: str | None) -> None:
        model, family = self.explored.model, self.explored.family
        memory = None
        if family != "generator":
            self._set_ids("source", self.text)
            memory = model.encode(self.ids_tensor("source"))
            self.final_states["encoder"] = memory.states
        if family == "generator":
            self._set_ids("target", self.text)
        if family == "translator":
            assert memory is not None
            self._set_target_ids(memory, target)
        if family != "embedder":
            self.final_states["decoder"] = model.decode(self.ids_tensor("target"), memory)

    def _set_ids(self, side: str, text: str) -> None:
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
        spec = self.explored.model.spec
        vocab_size = (
            spec.source_vocab_size
            if side == "source" and spec.source_vocab_size
            else spec.vocab_size
        )
        if max(ids) >= vocab_size:
            raise ApiError(
                422,
                "The tokenizer gives id {id}, but the model's vocabulary has {vocab_size} tokens.",
                id=max(ids),
                vocab_size=vocab_size,
            )
        self.ids[side] = apply_swaps(ids, side, self.edits, vocab_size)

    @property
    def max_tokens(self) -> int:
        return min(MAX_TOKENS, self.explored.max_len)

    def _set_target_ids(self, memory: Memory, target: str | None) -> None:
        """The given target text, or the greedy translation."""
        if target is not None:
            self._set_ids("target", target)
            return
        self.generated = self.greedy(memory)
        ids = [self.explored.bos_id or 0, *self.generated]
        ends = bool(self.generated) and self.generated[-1] == self.explored.eos_id
        ids = ids[:-1] if ends else ids[: self.max_tokens]
        vocab_size = self.explored.model.spec.vocab_size
        self.ids["target"] = apply_swaps(ids, "target", self.edits, vocab_size)

    def greedy(self, memory: Memory) -> list[int]:
        """Greedy decoding with the model's own `decode`, to which the edits apply."""
        explored, limit = self.explored, min(2 * len(self.ids["source"]) + 20, self.max_tokens)
        bos, eos = explored.bos_id or 0, -1 if explored.eos_id is None else explored.eos_id
        pad = explored.tokenizers["target"].pad_id
        suppressed = suppressed_ids(bos, eos, bos if pad is None else pad)
        config = GenerationConfig(
            temperature=0, seed=0, suppress_tokens=suppressed, max_new_tokens=limit
        )
        return generate(
            PlainStepper(explored.model, memory), [[bos]], config, Bounds(limit + 1, (eos,))
        )[0].ids

    @contextmanager
    def keeping_layer_inputs(self) -> Iterator[None]:
        """Keep the inputs of each layer (of several forward passes those of the last, full one)."""
        with ExitStack() as restore:
            for path, block in blocks_of(self.explored.model):

                def keep(module: nn.Module, inputs: tuple[Any, ...], path: str = path) -> None:
                    self.layer_inputs[path] = inputs[:3]  # without the cache

                restore.callback(block.register_forward_pre_hook(keep).remove)
            yield

    # ---- activations

    def activations_of(self, block: str) -> dict[str, Any]:
        """Every activation inside a layer, by module path; "<path" is the module's input."""
        return self._cached(block, lambda: self._record(block, f"{block}.*"))

    def weights(self, core: str) -> Tensor:
        """The attention weights of one core, (heads, query, key)."""
        path, block = f"{core}.weights", ".".join(core.split(".")[:3])
        if block in self.activations:
            return self.activations_of(block)[path]
        return self._cached(path, lambda: self._record(block, path))[path]

    def _record(self, block: str, pattern: str) -> dict[str, Any]:
        """Run a layer again and record the modules that match the pattern."""
        model = self.explored.model
        inputs: dict[str, Any] = {}
        with ExitStack() as restore:
            restore.enter_context(self.running())
            outputs = restore.enter_context(record(model, pattern))
            for path in outputs.paths:
                if path.rpartition(".")[2] in RECORD_INPUT:

                    def keep(
                        module: nn.Module, given: tuple[Any, ...], output: Any, path: str = path
                    ) -> None:
                        inputs[f"<{path}"] = given[0].detach()

                    restore.callback(model.get_submodule(path).register_forward_hook(keep).remove)
            model.get_submodule(block)(*self.layer_inputs[block])
        return {path: without_batch(value) for path, value in {**outputs, **inputs}.items()}

    def _cached(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The activations under this key; the least recently used ones are dropped."""
        if key not in self.activations:
            self.activations[key] = compute()
            while (
                len(self.activations) > 1
                and sum(map(n_bytes_of, self.activations.values())) > MAX_ACTIVATION_BYTES
            ):
                self.activations.popitem(last=False)
        self.activations.move_to_end(key)
        return self.activations[key]


def pass_id(text: str, edits: Sequence[Edit], target: str | None) -> str:
    """A hash of the text, the edits and the target."""
    content = json.dumps([text, list(map(str, edits)), target])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def blocks_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of both stacks by their module paths."""
    stacks = [(name, getattr(model, name)) for name in ("encoder", "decoder")]
    return [
        (f"{name}.layers.{n}", block)
        for name, stack in stacks
        if stack
        for n, block in enumerate(stack.layers)
    ]


def without_batch(output: Any) -> Any:
    """The only row of a batch of one; a router's outputs have no batch axis."""
    return output[0] if isinstance(output, Tensor) and output.ndim > 2 else output


def n_bytes_of(activations: dict[str, Any]) -> int:
    tensors = [
        tensor
        for output in activations.values()
        for tensor in (output if isinstance(output, tuple) else [output])
    ]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
