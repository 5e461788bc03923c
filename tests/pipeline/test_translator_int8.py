"""A translator with 8-bit matrices translates nearly as the exact one, and one that cannot is refused."""

import pytest
import torch

from qkv.engine.stepper import make_stepper
from qkv.errors import QkvError
from qkv.generate.beam import BeamRules, beam_search
from qkv.generate.decode import greedy
from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer

IDS = {"bos_id": 2, "eos_id": 3, "pad_id": 0}


def sharp_model() -> Transformer:
    """Weights large enough that one token clearly wins."""
    torch.manual_seed(0)
    model = Transformer(encoder_decoder(60, 64, 2, 4, 128)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


def test_scores_in_8_bits_are_near_the_exact_ones_and_not_the_same():
    model, source = sharp_model(), torch.randint(4, 50, (3, 6)).tolist()
    with torch.inference_mode():
        exact, small = make_stepper(model), make_stepper(model, int8=True)
        a, b = (stepper.prefill([[2]] * 3, source) for stepper in (exact, small))
        for _ in range(12):
            assert 0 < float((a - b).norm() / a.norm()) < 0.1
            ids = a.argmax(dim=1)
            a, b = exact.step(ids), small.step(ids)


@pytest.mark.parametrize("int8", [True, False])
def test_a_translation_in_8_bits_is_the_same_alone_and_in_company(int8):
    model, source = sharp_model(), torch.randint(4, 50, (20, 6))
    together = greedy(model, source, None, max_len=15, int8=int8, **IDS)
    assert together == [
        greedy(model, row[None], None, max_len=15, int8=int8, **IDS)[0] for row in source
    ]
    rules = BeamRules(2, 3, 0, 4, 0.6)
    best = beam_search(model, source, None, rules, 15, int8)
    assert [one[0].ids for one in best] == [
        beam_search(model, row[None], None, rules, 15, int8)[0][0].ids for row in source
    ]


def test_a_model_without_such_a_step_is_refused():
    with pytest.raises(QkvError, match="no such step"):
        make_stepper(sharp_model().double(), int8=True)
