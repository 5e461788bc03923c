"""One text through the model, kept so that any step of it can be looked at later.

In: a text, and edits. Out: a Pass, which keeps only what each layer was given: a layer runs again, explained, when
someone asks what happened inside, so that long texts open at once. Told in docs/explore.md, "The page".
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.engine.stepper import PlainStepper
from qkv.explore.edits import Edit, edited, swapped
from qkv.explore.problem import Problem
from qkv.explore.record import record
from qkv.explore.subject import Subject
from qkv.generate.config import GenerationConfig
from qkv.generate.decode import suppressed_ids
from qkv.generate.loop import Bounds, generate
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Memory

MOST_TOKENS = 512
LOOKS_BYTES = 96 << 20  # what a pass keeps of layers that were looked at again

# Of these modules the input is of interest: the joined heads, what passes the bend, the sum before a norm, split heads.
SHOW_INPUT = ("o_proj", "down_proj", "norm", "q_norm", "k_norm")


class Pass:
    """The ids of each side, what each layer was given, and the stream each stack ends in."""

    def __init__(
        self, subject: Subject, text: str, edits: Sequence[Edit], target: str | None = None
    ):
        self.subject, self.text, self.edits = subject, text, tuple(edits)
        self.id = name_of(text, edits, target)
        self.ids: dict[str, list[int]] = {}
        self.said: list[int] | None = (
            None  # what the decoder says after it has read <bos>, <eos> included
        )
        self.given: dict[str, tuple[Any, ...]] = {}  # "decoder.layers.0" -> x, view, memory
        self.streams: dict[str, Tensor] = {}  # "decoder" -> (1, length, d_model)
        self.looks: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.summary: dict[str, Any] | None = (
            None  # what it says at each place, once someone has asked
        )
        with self.running(), self.listening():
            self._run(target)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The model at rest, with the edits of this pass."""
        with eval_mode(self.subject.model), edited(self.subject.model, self.edits):
            yield

    @property
    def device(self) -> torch.device:
        return self.subject.model.embed.weight.device

    def row(self, side: str) -> Tensor:
        """The ids of a side as a batch of one, (1, length)."""
        return torch.tensor([self.ids[side]], device=self.device)

    @property
    def end(self) -> str:
        """The side that logits are said about."""
        return "source" if self.subject.family == "embedder" else "target"

    # ---- running ----------------------------------------------------------------------------------------------------

    def _run(self, target: str | None) -> None:
        model, family = self.subject.model, self.subject.family
        memory = None
        if family != "generator":
            self._take("source", self.text)
            memory = model.encode(self.row("source"))
            self.streams["encoder"] = memory.states
        if family == "generator":
            self._take("target", self.text)
        if family == "translator":
            assert memory is not None
            self._begin_target(memory, target)
        if family != "embedder":
            self.streams["decoder"] = model.decode(self.row("target"), memory)

    def _take(self, side: str, text: str) -> None:
        """Read a text for this side; too much and nothing at all are refused."""
        ids = self.subject.read(text, side)
        most = self.most_tokens
        if len(ids) > most:
            raise Problem(
                413,
                "The text has {n_ids} tokens; at most {most} can be shown.",
                n_ids=len(ids),
                most=most,
            )
        if not ids:
            raise Problem(422, "There is nothing to read: type a text.")
        spec = self.subject.model.spec
        size = (
            spec.source_vocab_size
            if side == "source" and spec.source_vocab_size
            else spec.vocab_size
        )
        if max(ids) >= size:
            raise Problem(
                422,
                "The tokenizer gives id {ids}, the model knows only {size}.",
                ids=max(ids),
                size=size,
            )
        self.ids[side] = swapped(ids, side, self.edits, size)

    @property
    def most_tokens(self) -> int:
        return min(MOST_TOKENS, self.subject.longest)

    def _begin_target(self, memory: Memory, target: str | None) -> None:
        """What the decoder has said, word by word, or what it is told to have said."""
        if target is not None:
            self._take("target", target)
            return
        self.said = self.greedy(memory)
        whole = [self.subject.bos_id or 0, *self.said]
        kept = (
            whole[:-1]
            if self.said and self.said[-1] == self.subject.eos_id
            else whole[: self.most_tokens]
        )
        self.ids["target"] = swapped(kept, "target", self.edits, self.subject.model.spec.vocab_size)

    def greedy(self, memory: Memory) -> list[int]:
        """The likeliest token again and again, by the model's own decode, which the edits reach."""
        subject, limit = self.subject, min(2 * len(self.ids["source"]) + 20, self.most_tokens)
        begin, end = subject.bos_id or 0, -1 if subject.eos_id is None else subject.eos_id
        pad = subject.tokenizers["target"].pad_id
        banned = suppressed_ids(begin, end, begin if pad is None else pad)
        settings = GenerationConfig(temperature=0, seed=0, banned=banned, max_new_tokens=limit)
        return generate(
            PlainStepper(subject.model, memory), [[begin]], settings, Bounds(limit + 1, (end,))
        )[0].ids

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While it lasts, what each layer is given is kept (of several passes the last: the whole one)."""
        with ExitStack() as put_back:
            for path, block in blocks_of(self.subject.model):

                def keep(module: nn.Module, given: tuple[Any, ...], path: str = path) -> None:
                    self.given[path] = given[:3]  # without the cache

                put_back.callback(block.register_forward_pre_hook(keep).remove)
            yield

    # ---- looking again ----------------------------------------------------------------------------------------------

    def look(self, block: str) -> dict[str, Any]:
        """Every step inside a layer, by module path; "<path" is what the module was given."""
        return self._looked(block, lambda: self._look(block, f"{block}.*"))

    def weights(self, core: str) -> Tensor:
        """The attention weights of one core, (heads, query, key)."""
        path, block = f"{core}.weights", ".".join(core.split(".")[:3])
        if block in self.looks:
            return self.look(block)[path]
        return self._looked(path, lambda: self._look(block, path))[path]

    def _look(self, block: str, pattern: str) -> dict[str, Any]:
        model = self.subject.model
        inputs: dict[str, Any] = {}
        with ExitStack() as put_back:
            put_back.enter_context(self.running())
            steps = put_back.enter_context(record(model, pattern))
            for path in steps.paths:
                if path.rpartition(".")[2] in SHOW_INPUT:

                    def keep(
                        module: nn.Module, given: tuple[Any, ...], output: Any, path: str = path
                    ) -> None:
                        inputs[f"<{path}"] = given[0].detach()

                    put_back.callback(model.get_submodule(path).register_forward_hook(keep).remove)
            model.get_submodule(block)(*self.given[block])
        return {path: alone(output) for path, output in {**steps, **inputs}.items()}

    def _looked(self, key: str, make: Any) -> dict[str, Any]:
        if key not in self.looks:
            self.looks[key] = make()
            while len(self.looks) > 1 and sum(map(bytes_of, self.looks.values())) > LOOKS_BYTES:
                self.looks.popitem(last=False)
        self.looks.move_to_end(key)
        return self.looks[key]


def name_of(text: str, edits: Sequence[Edit], target: str | None) -> str:
    """The same text and edits have the same name."""
    whole = json.dumps([text, list(map(str, edits)), target])
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def blocks_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of both stacks by their module paths."""
    stacks = [(name, getattr(model, name)) for name in ("encoder", "decoder")]
    return [
        (f"{name}.layers.{n}", block)
        for name, stack in stacks
        if stack
        for n, block in enumerate(stack.layers)
    ]


def alone(output: Any) -> Any:
    """The only row of a batch of one; what a router says of tokens has no batch."""
    return output[0] if isinstance(output, Tensor) and output.ndim > 2 else output


def bytes_of(look: dict[str, Any]) -> int:
    flat = [
        one
        for output in look.values()
        for one in (output if isinstance(output, tuple) else [output])
    ]
    return sum(one.numel() * one.element_size() for one in flat if isinstance(one, Tensor))
