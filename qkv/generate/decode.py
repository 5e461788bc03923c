"""Greedy decoding of translations, and log-probabilities of given targets.

Greedy decoding is the loop of generate/loop.py at temperature 0, batch-invariant.
See docs/explanation/decoding.md, "Decoding".
"""

import math
from collections.abc import Sequence

import torch

from qkv.engine.packed_model import right_padded
from qkv.engine.stepper import make_stepper
from qkv.generate.beam import BeamSearchConfig
from qkv.generate.config import GenerationConfig
from qkv.generate.loop import Bounds, generate
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer


def greedy(
    model: Transformer,
    sources: list[list[int]],
    config: BeamSearchConfig,
    limits: list[int],
    int8: bool = False,
) -> list[list[int]]:
    """Return the target ids of each sentence, without <bos>, with <eos> if it ended.

    The arguments are those of beam_search; only the special tokens of `config` are used.
    """
    assert model.decoder is not None and min(limits) >= 1, "a limit must be at least 1"
    limits = [min(limit, model.decoder.limit or limit) for limit in limits]
    generation = GenerationConfig(
        temperature=0,
        seed=0,
        suppress_tokens=tuple(config.suppressed_ids),
        max_new_tokens=max(limits),
    )
    stepper, bounds = make_stepper(model, int8), Bounds(max(limits) + 1, (config.eos_id,))
    prompts = [[config.bos_id]] * len(limits)
    sequences = generate(stepper, prompts, generation, bounds, None, sources, limits)
    return [sequence.ids for sequence in sequences]


def forced_log_probs(
    model: Transformer,
    sources: list[list[int]],
    targets: Sequence[Sequence[int]],
    bos_id: int,
    suppressed_ids: Sequence[int] = (),
) -> list[list[float]]:
    """The log-probability of each target token given those before it, in one forced pass.

    Suppressed tokens have probability 0.
    """
    device, lengths = model.embed.weight.device, [len(target) for target in targets]
    source_ids = torch.tensor(right_padded(sources), device=device)  # (batch, source)
    source_lengths = torch.tensor([len(source) for source in sources], device=device)
    attention_mask = torch.arange(source_ids.shape[1], device=device) < source_lengths[:, None]
    # Padding at the end is masked for all earlier positions by the causal mask.
    ids = torch.tensor(right_padded([[bos_id, *target] for target in targets]), device=device)
    with eval_mode(model):
        memory = model.encode(source_ids, attention_mask)
        logits = model.logits(model.decode(ids[:, :-1], memory))  # (batch, target, vocab)
        logits[..., list(suppressed_ids)] = -math.inf
        # (batch, target)
        log_probs = logits.log_softmax(dim=-1).gather(2, ids[:, 1:, None])[..., 0]
    return [row[:length] for row, length in zip(log_probs.tolist(), lengths, strict=True)]
