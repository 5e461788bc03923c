"""EMA and checkpoint averages follow their formulas, and the model gets its weights back."""

import torch
from torch import nn

from qkv.train.average import Ema, average_state_dicts


def small_model(seed=0):
    torch.manual_seed(seed)
    model = nn.ModuleDict({"b": nn.Linear(3, 3), "a": nn.Linear(3, 3), "tied": nn.Linear(3, 3)})
    model["tied"].weight = model["b"].weight
    return model


def change(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight))


def test_the_ema_follows_its_formula():
    model = small_model()
    ema, expected = (
        Ema(model, 0.9),
        {name: weight.detach().double() for name, weight in model.named_parameters()},
    )
    for seed in range(1, 6):
        change(model, seed)
        ema.update(model)
        expected = {
            name: 0.9 * expected[name] + 0.1 * weight.detach().double()
            for name, weight in model.named_parameters()
        }
    for name, weight in ema.weights.items():
        torch.testing.assert_close(weight.double(), expected[name], rtol=0, atol=1e-6)


def test_an_ema_saved_with_sorted_names_continues_identically():
    models, averages = [small_model(), small_model()], []
    for model in models:
        averages.append(Ema(model, 0.5))
        change(model, 1)
        averages[-1].update(model)
    averages[1].load(
        dict(sorted((name, weight.clone()) for name, weight in averages[1].weights.items()))
    )  # as in a file
    for model, ema in zip(models, averages, strict=True):
        change(model, 2)
        ema.update(model)
    assert list(averages[1].weights) == [name for name, _ in models[1].named_parameters()]
    for name, weight in averages[0].weights.items():
        assert torch.equal(weight, averages[1].weights[name]), name


def test_a_model_has_the_ema_weights_inside_the_block_and_its_own_after_it():
    model, x = small_model(), torch.ones(2, 3)
    ema = Ema(model, 0.5)
    averaged = model["tied"](model["a"](x))
    change(model, 3)
    own = model["tied"](model["a"](x))
    try:
        with ema.applied_to(model):
            assert torch.equal(model["tied"](model["a"](x)), averaged)
            raise KeyError("an error inside the block")
    except KeyError:
        pass
    assert torch.equal(model["tied"](model["a"](x)), own)
    assert model["tied"].weight is model["b"].weight


def test_applying_the_ema_does_not_change_it():
    model = small_model()
    ema = Ema(model, 0.5)
    kept = {name: weight.clone() for name, weight in ema.weights.items()}
    with ema.applied_to(model):
        pass
    change(model, 4)
    assert all(torch.equal(weight, kept[name]) for name, weight in ema.weights.items())


def test_the_mean_is_computed_in_float64_and_keeps_each_dtype():
    tiny, states = 2.0**-24, [{"w": torch.full((2,), 1.0), "n": torch.tensor(4)} for _ in range(4)]
    states[1]["w"], states[2]["w"], states[3]["w"] = (
        torch.full((2,), tiny),
        torch.full((2,), tiny),
        torch.full((2,), tiny),
    )
    mean = average_state_dicts(iter(states))
    assert (
        mean["w"].tolist()
        == [torch.tensor((1 + 3 * tiny) / 4, dtype=torch.float64).float().item()] * 2
    )
    assert (
        mean["w"].tolist()[0] != 0.25 and mean["w"].dtype == torch.float32
    )  # in float32 it would be
    assert mean["n"].item() == 4 and mean["n"].dtype == torch.int64


def test_the_mean_does_not_change_its_inputs():
    states = [{"w": torch.tensor([1.0]).double()}, {"w": torch.tensor([3.0]).double()}]
    assert average_state_dicts(states)["w"].item() == 2.0
    assert [state["w"].item() for state in states] == [1.0, 3.0]
