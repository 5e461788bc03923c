"""Tiny translators: random ones, and one that has half learned to turn a row round."""

import pytest
import torch

from qkv.model.presets import encoder_decoder
from qkv.model.transformer import Transformer

PAD, BOS, EOS = 0, 1, 2


def rows(
    n: int, vocab: int = 24, longest: int = 10, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids that end in <eos>, padded on the right, and which of them are real."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=drawn)
    ids = torch.randint(3, vocab, (n, longest + 1), generator=drawn)
    place = torch.arange(longest + 1)
    ids[place == lengths[:, None]] = EOS
    real = place <= lengths[:, None]
    ids[~real] = PAD
    width = int(lengths.max()) + 1
    return ids[:, :width], real[:, :width]


@pytest.fixture(scope="session")
def make_sources():
    return rows


@pytest.fixture(scope="session")
def random_model():
    """Weights drawn at random, in float64."""

    def make(seed: int, vocab: int = 6) -> Transformer:
        torch.manual_seed(seed)
        model = Transformer(encoder_decoder(vocab, 8, layers=1, n_heads=2, d_ff=16)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        return model.eval()

    return make


@pytest.fixture(scope="session")
def half_trained() -> Transformer:
    """A short training on "say it backwards": sure of some tokens, unsure of others, sentences of all lengths."""
    torch.manual_seed(1)
    model = Transformer(encoder_decoder(24, 32, layers=2, n_heads=2, d_ff=64, dropout=0.0))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(120):
        source, real = rows(64, seed=step + 100)
        lengths = real.sum(dim=1) - 1
        place = torch.arange(source.shape[1])
        target = source.gather(1, (lengths[:, None] - 1 - place) % source.shape[1]).where(
            place < lengths[:, None], EOS
        )
        begun = torch.cat([torch.full((64, 1), BOS), target[:, :-1]], dim=1)
        stream = model.decode(begun, model.encode(source, real))
        loss = model.loss(stream, target, real) / real.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.double().eval()


@pytest.fixture(params=["torch", pytest.param("native", marks=pytest.mark.native)])
def steps_by(request, monkeypatch):
    """Fast steps are made of torch's operations, or by the native library; it must be here, or the test fails."""
    monkeypatch.setattr(
        "qkv.engine.packed_model.can_be_native", lambda weight: request.param == "native"
    )
    return request.param
