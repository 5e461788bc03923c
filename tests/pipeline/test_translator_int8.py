"""Translation with int8 weights: close to float32, batch-invariant; unsupported models."""

import pytest
import torch

from qkv.engine.stepper import make_stepper
from qkv.errors import QkvError
from qkv.generate.beam import BeamSearchConfig, beam_search
from qkv.generate.decode import greedy
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer

IDS = {"bos_id": 2, "eos_id": 3, "pad_id": 0}


def peaked_model() -> Transformer:
    """Return a model with large weights, so that its distributions are peaked."""
    torch.manual_seed(0)
    model = Transformer(encoder_decoder(60, 64, 2, 4, 128)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


def test_int8_logits_are_close_to_float32_but_not_equal():
    model, source = peaked_model(), torch.randint(4, 50, (3, 6)).tolist()
    with torch.inference_mode():
        exact, quantized = make_stepper(model), make_stepper(model, int8=True)
        a, b = (stepper.prefill([[2]] * 3, source) for stepper in (exact, quantized))
        for _ in range(12):
            assert 0 < float((a - b).norm() / a.norm()) < 0.1
            ids = a.argmax(dim=1)
            a, b = exact.step(ids), quantized.step(ids)


@pytest.mark.parametrize("int8", [True, False])
def test_int8_translations_are_batch_invariant(int8):
    model, source = peaked_model(), torch.randint(4, 50, (20, 6)).tolist()
    config = BeamSearchConfig(2, 3, 0, 4, 0.6)
    batched = greedy(model, source, config, [15] * 20, int8)
    assert batched == [greedy(model, [row], config, [15], int8)[0] for row in source]
    best = beam_search(model, source, config, [15] * 20, int8)
    assert [hypotheses[0].ids for hypotheses in best] == [
        beam_search(model, [row], config, [15], int8)[0][0].ids for row in source
    ]


def test_a_model_that_cannot_be_quantized_is_rejected():
    with pytest.raises(QkvError, match="cannot be quantized"):
        make_stepper(peaked_model().double(), int8=True)
