"""The native library multiplies as torch does, and gives a row the same digits in any company."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from qkv.engine import native_step as native
from qkv.engine.native_step import native_int8_product, native_product
from qkv.engine.packed_model import PackedModel, int8_loss
from qkv.engine.stepper import PackedStepper, make_stepper
from qkv.generate.beam import BeamRules, beam_search
from qkv.generate.config import GenerationConfig
from qkv.generate.decode import forced_log_probs, greedy
from qkv.generate.loop import Bounds, generate
from qkv.kernels import calling
from qkv.model.eval_mode import eval_mode
from qkv.model.presets import decoder_only, encoder_decoder
from qkv.model.spec import Gated, Heads, Rotary
from qkv.model.transformer import Transformer


def made_of(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@pytest.mark.native
@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 30, 300, 1_100])
@pytest.mark.parametrize(
    "outputs, inputs", [(1, 1), (7, 3), (32, 16), (33, 40), (100, 24), (257, 65)]
)
def test_a_product_is_x_times_w_plus_b(rows, outputs, inputs):
    weight, bias, x = (
        made_of(outputs, inputs, dtype=torch.double),
        made_of(outputs, dtype=torch.double),
        made_of(rows, inputs, dtype=torch.double),
    )
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
    """The nearest matrix of whole numbers -127 ... 127, one scale for each output."""
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / step).round() * step


@pytest.mark.native
@pytest.mark.parametrize("rows", [1, 3, 17, 256, 1_024])
def test_an_int8_product_is_that_of_the_nearest_whole_numbers(rows):
    weight, bias, x = made_of(70, 50), made_of(70), made_of(rows, 50)
    expected = x.double() @ rounded(weight).double().T + bias
    torch.testing.assert_close(
        native_int8_product(weight, bias)(x), expected.float(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.native
@pytest.mark.parametrize("make", [native_product, native_int8_product])
@pytest.mark.parametrize("inputs", [77, 9_001])  # of so many, only some of the rows stay near
def test_a_row_gets_the_same_digits_alone_and_in_any_company(make, inputs):
    run, x = make(made_of(130, inputs), None), made_of(100, inputs)
    together = run(x)
    weight = made_of(130, inputs) if make is native_product else rounded(made_of(130, inputs))
    torch.testing.assert_close(together, F.linear(x, weight), rtol=1e-5, atol=1e-5 * inputs**0.5)
    for first, last in ((0, 1), (3, 7), (5, 30), (20, 90), (39, 40)):
        assert run(x[first:last]).equal(together[first:last])


@pytest.mark.native
def test_two_threads_give_the_digits_of_one(monkeypatch):
    torch.manual_seed(0)
    model = Transformer(decoder_only(300, 48, 2, Heads(4, 2, 12, qk_norm=True), Gated(96))).eval()
    said = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(
            native, "inference_threads_for", lambda work, min_work, threads=threads: threads
        )
        stepper = PackedStepper(model)
        assert stepper.packed.native is not None
        with torch.inference_mode():
            logits = [stepper.prefill([[1, 2, 3], [4]])]
            logits += [stepper.step(torch.tensor([n, n + 1])) for n in range(20)]
        said.append(torch.stack(logits))
    assert said[1].equal(said[0]) and said[2].equal(said[0])


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
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    rules = BeamRules(2, 3, 0, 4, 0.6)
    together = beam_search(model, source, real, rules, 12)
    for row, length in enumerate(lengths):
        alone = beam_search(model, source[row : row + 1, :length], None, rules, 12)[0]
        assert [(one.ids, one.score) for one in alone] == [
            (one.ids, one.score) for one in together[row]
        ]


@pytest.mark.native
def test_what_is_said_under_autocast_is_what_is_said_without():
    torch.manual_seed(0)
    pairs, texts = (
        Transformer(encoder_decoder(60, 32, 2, 4, 48)).eval(),
        Transformer(decoder_only(60, 32, 2, Heads(4, 2, 8), Gated(48))).eval(),
    )
    assert PackedModel.of(pairs).native is not None
    source, real = torch.randint(4, 50, (3, 7)), torch.arange(7) < torch.tensor([7, 5, 2])[:, None]

    def said():
        for int8 in (False, True):
            yield greedy(pairs, source, real, bos_id=2, eos_id=3, pad_id=0, max_len=12, int8=int8)
            yield greedy(
                pairs, source[:1], None, bos_id=2, eos_id=3, pad_id=0, max_len=12, int8=int8
            )  # read by the library too
            yield beam_search(pairs, source, real, BeamRules(2, 3, 0, 4, 0.6), 12, int8)
            with eval_mode(texts):
                yield generate(
                    make_stepper(texts, int8),
                    [[1, 2, 3], [4]],
                    GenerationConfig(max_new_tokens=12, temperature=0, seed=1),
                    Bounds(40),
                )
        yield int8_loss(texts, source)
        yield forced_log_probs(pairs, source, real, [[5, 6], [7], [8, 9, 10]], 2)

    expected = list(said())
    with torch.autocast("cpu", torch.float16):
        assert list(said()) == expected
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.native
def test_the_library_is_never_given_other_numbers_than_it_reads():
    run, x = native_product(made_of(8, 4), None), made_of(2, 4)
    for other in (x.half(), x.bfloat16(), x.double()):
        with pytest.raises(AssertionError):
            run(other)


def test_other_numbers_and_devices_are_left_to_torch():
    assert not calling.can_be_native(torch.zeros(1, dtype=torch.float64))
    assert not calling.can_be_native(torch.zeros(1, device="meta"))
