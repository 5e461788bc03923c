"""Native products equal torch's, and are batch-invariant and independent of threads."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tiny_translators import unpadded

from qkv.engine import native_step as native
from qkv.engine.native_step import native_int8_product, native_product
from qkv.engine.packed_model import PackedModel
from qkv.engine.stepper import PackedStepper, make_stepper
from qkv.evaluate.int8_loss import int8_loss
from qkv.generate.beam import BeamSearchConfig, beam_search
from qkv.generate.config import GenerationConfig
from qkv.generate.decode import forced_log_probs, greedy
from qkv.generate.loop import Bounds, generate
from qkv.kernels import build
from qkv.model.eval_mode import eval_mode
from qkv.model.presets import decoder_only, encoder_decoder
from qkv.model.spec import Attention, Gated, Rotary
from qkv.model.transformer import Transformer


def random_tensor(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@pytest.mark.native
@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 30, 300, 1_100])
@pytest.mark.parametrize(
    "outputs, inputs", [(1, 1), (7, 3), (32, 16), (33, 40), (100, 24), (257, 65)]
)
def test_a_product_is_x_times_w_plus_b(rows, outputs, inputs):
    weight = random_tensor(outputs, inputs, dtype=torch.double)
    bias = random_tensor(outputs, dtype=torch.double)
    x = random_tensor(rows, inputs, dtype=torch.double)
    expected = x @ weight.T + bias
    torch.testing.assert_close(native_product(weight, bias)(x), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        native_product(weight.float(), bias.float())(x.float()),
        expected.float(),
        rtol=1e-5,
        atol=1e-5,
    )
    torch.testing.assert_close(native_product(weight, None)(x), expected - bias, rtol=0, atol=1e-10)


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """The weight rounded to integers -127 ... 127 with one scale per output."""
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / step).round() * step


@pytest.mark.native
@pytest.mark.parametrize("rows", [1, 3, 17, 256, 1_024])
def test_an_int8_product_is_that_of_the_rounded_weight(rows):
    weight, bias, x = random_tensor(70, 50), random_tensor(70), random_tensor(rows, 50)
    expected = x.double() @ rounded(weight).double().T + bias
    torch.testing.assert_close(
        native_int8_product(weight, bias)(x), expected.float(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.native
@pytest.mark.parametrize("make", [native_product, native_int8_product])
@pytest.mark.parametrize("inputs", [77, 9_001])  # with 9,001 the rows are tiled
def test_native_products_are_batch_invariant(make, inputs):
    run, x = make(random_tensor(130, inputs), None), random_tensor(100, inputs)
    batched = run(x)
    weight = (
        random_tensor(130, inputs)
        if make is native_product
        else rounded(random_tensor(130, inputs))
    )
    torch.testing.assert_close(batched, F.linear(x, weight), rtol=1e-5, atol=1e-5 * inputs**0.5)
    for first, last in ((0, 1), (3, 7), (5, 30), (20, 90), (39, 40)):
        assert run(x[first:last]).equal(batched[first:last])


@pytest.mark.native
def test_logits_do_not_depend_on_the_number_of_threads(monkeypatch):
    torch.manual_seed(0)
    model = Transformer(
        decoder_only(300, 48, 2, Attention(4, 2, 12, qk_norm=True), Gated(96))
    ).eval()
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(
            native, "inference_threads_for", lambda work, min_work, threads=threads: threads
        )
        stepper = PackedStepper(model)
        assert stepper.packed.native is not None
        with torch.inference_mode():
            logits = [stepper.prefill([[1, 2, 3], [4]])]
            logits += [stepper.step(torch.tensor([n, n + 1])) for n in range(20)]
        found.append(torch.stack(logits))
    assert found[1].equal(found[0]) and found[2].equal(found[0])


@pytest.mark.native
@pytest.mark.parametrize("qk_norm", [False, True])
def test_translation_scores_are_batch_invariant(qk_norm):
    torch.manual_seed(0)
    spec = encoder_decoder(60, 32, 2, 4, 48)
    if qk_norm:
        layers = {
            side: replace(stack.layers[0], mixer=replace(stack.layers[0].mixer, qk_norm=True))
            for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))
        }
        spec = replace(
            spec,
            positions=Rotary(),
            **{
                side: replace(getattr(spec, side), layers=(layer,))
                for side, layer in layers.items()
            },
        )
    model = Transformer(spec).eval()
    lengths = [7, 5, 2, 7, 5, 150, 64, 1, 7]
    source = torch.randint(4, 50, (len(lengths), max(lengths)))
    attention_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    config = BeamSearchConfig(2, 3, 0, 4, 0.6)
    batched = beam_search(model, unpadded(source, attention_mask), config, [12] * len(lengths))
    for row, length in enumerate(lengths):
        alone = beam_search(model, [source[row, :length].tolist()], config, [12])[0]
        assert [(h.ids, h.score) for h in alone] == [(h.ids, h.score) for h in batched[row]]


@pytest.mark.native
def test_autocast_does_not_change_decoding():
    torch.manual_seed(0)
    translator = Transformer(encoder_decoder(60, 32, 2, 4, 48)).eval()
    generator = Transformer(decoder_only(60, 32, 2, Attention(4, 2, 8), Gated(48))).eval()
    assert PackedModel.of(translator).native is not None
    source = torch.randint(4, 50, (3, 7))
    attention_mask = torch.arange(7) < torch.tensor([7, 5, 2])[:, None]
    sources, config = unpadded(source, attention_mask), BeamSearchConfig(2, 3, 0, 4, 0.6)

    def decode():
        for int8 in (False, True):
            yield greedy(translator, sources, config, [12] * 3, int8)
            yield greedy(translator, sources[:1], config, [12], int8)
            yield beam_search(translator, sources, config, [12] * 3, int8)
            with eval_mode(generator):
                yield generate(
                    make_stepper(generator, int8),
                    [[1, 2, 3], [4]],
                    GenerationConfig(max_new_tokens=12, temperature=0, seed=1),
                    Bounds(40),
                )
        yield int8_loss(generator, source)
        yield forced_log_probs(translator, sources, [[5, 6], [7], [8, 9, 10]], 2)

    expected = list(decode())
    with torch.autocast("cpu", torch.float16):
        assert list(decode()) == expected
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.native
def test_a_native_product_asserts_its_dtype():
    run, x = native_product(random_tensor(8, 4), None), random_tensor(2, 4)
    for other in (x.half(), x.bfloat16(), x.double()):
        with pytest.raises(AssertionError):
            run(other)


def test_other_dtypes_and_devices_are_not_native():
    assert not build.can_be_native(torch.zeros(1, dtype=torch.float64))
    assert not build.can_be_native(torch.zeros(1, device="meta"))
