"""A product in oneDNN's layout with its activation is torch's own, one after the other."""

import pytest
import torch
from torch import nn

from qkv.generate.packed import FUSED, has_onednn, packed
from qkv.model.feed_forward import ACTIVATIONS


@pytest.mark.parametrize("rows", [1, 7, 200])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.inference_mode()
def test_it_is_the_product_and_then_the_activation(rows, activation, dtype):
    torch.manual_seed(0)
    maps, x = [nn.Linear(48, 32, dtype=dtype), nn.Linear(48, 20, dtype=dtype)], 3 * torch.randn(rows, 48, dtype=dtype)
    whole = torch.cat([one(x) for one in maps], dim=-1)
    wanted = whole if activation is None else ACTIVATIONS[activation](whole)
    torch.testing.assert_close(packed(maps, activation)(x), wanted, rtol=1e-6, atol=5e-6 if dtype == torch.float32 else 1e-12)


@torch.inference_mode()
def test_a_map_without_bias_has_none():
    bare, x = nn.Linear(8, 4, bias=False), torch.randn(3, 8)
    torch.testing.assert_close(packed([bare], "gelu")(x), torch.nn.functional.gelu(bare(x)), rtol=1e-6, atol=1e-6)


def test_only_float32_on_a_cpu_is_laid_out_anew():
    assert not has_onednn(torch.zeros(1, dtype=torch.float64)) and not has_onednn(torch.zeros(1, device="meta"))
    assert has_onednn(torch.zeros(1)) == torch.backends.mkldnn.is_available()
    assert FUSED.keys() <= ACTIVATIONS.keys()
