"""The study of heads: equal parameters, and the ablation against weights set to zero."""

import numpy as np
import pytest
import torch

from qkv.plan.cost import flops, make_workload, parameters
from qkv.study.config import StudyConfig
from qkv.study.heads import D_MODEL, N_HEADS, QUESTION, ablation_increases, spec_of
from qkv.study.language_model import loss_by_position, new_model, valid_ids
from qkv.study.question import Trial
from qkv.study.texts import write_data


@pytest.mark.parametrize("experiment", ["split", "wide"])
def test_conditions_have_equal_parameters_and_flops(experiment):
    sizes = set()
    for condition in QUESTION.experiments[experiment].conditions.values():
        spec = spec_of(condition.settings["n_heads"], condition.settings["d_head"])
        workload = make_workload(spec, 1, 64)
        sizes.add((sum(parameters(spec).values()), sum(flops(spec, workload).values())))
    assert len(sizes) == 1
    assert [D_MODEL // n * n for n in N_HEADS] == [D_MODEL] * 5


def test_an_ablated_head_is_one_whose_output_weights_are_zero(tmp_path):
    write_data(QUESTION, StudyConfig(), tmp_path)
    trial = Trial({}, 0, 0, tmp_path, lambda step: None)
    model = new_model(spec_of(4, 32), trial)
    increases = ablation_increases(model, trial, 4)
    assert len(increases) == 8
    ids = valid_ids(trial)
    before = np.mean(loss_by_position(model, ids))
    with torch.no_grad():  # head 2 of layer 1
        model.decoder.layers[1].attn.branch.o_proj.weight[:, 64:96] = 0
    expected = np.mean(loss_by_position(model, ids)) - before
    assert increases[6] == pytest.approx(expected, abs=1e-6) and expected != 0
