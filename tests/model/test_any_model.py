"""Invariants of random specs, built small and checked in float64."""

import os

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_models import assert_close, build, hidden_states, padded, random_ids

from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.check_spec import check_spec
from qkv.model.spec_io import from_json, to_json

# For more examples: QKV_EXAMPLES=2000 pytest tests/model/test_any_model.py
EXAMPLES = int(os.environ.get("QKV_EXAMPLES", "60"))
flags, small = st.booleans(), st.integers(1, 4)
activations = st.sampled_from(["relu", "relu2", "gelu", "gelu_tanh", "silu"])
scalings = st.one_of(
    st.none(),
    st.builds(s.LinearScaling, st.sampled_from([2.0, 0.5])),
    st.just(s.LlamaScaling(8.0, 1.0, 4.0, 32)),
    st.builds(
        s.YarnScaling,
        st.sampled_from([4.0, 40.0]),
        st.sampled_from([16, 4_096]),
        attention_factor=st.just(1.2),
    ),
)
positions = st.one_of(
    st.builds(s.Sinusoidal, st.sampled_from(["alternating", "halves"])),
    st.builds(s.Learned, st.integers(0, 3)),
    st.builds(
        s.Rotary, st.sampled_from([10.0, 1e4]), st.sampled_from([0.5, 1.0]), st.booleans(), scalings
    ),
    st.just(s.NoPositions()),
    st.just(s.ALiBi()),
)
heads = st.builds(
    lambda kv, group, window, *rest: s.Attention(kv * group, kv, 4, window, *rest),
    small,
    small,
    st.none() | st.integers(1, 9),
    flags,
    flags,
    flags,
)
mixers = st.one_of(
    heads,
    st.builds(s.LatentAttention, small, small, small, st.just(4), small, st.none() | small),
    st.builds(s.Recurrent, st.sampled_from(["lstm", "gru"])),
    st.builds(s.Convolution, st.integers(1, 5), st.integers(1, 3)),
    st.just(s.TokenMlp()),
    st.builds(s.Pooling, st.integers(1, 5)),
)
plain = st.builds(s.Dense, st.integers(1, 9), activations) | st.builds(
    s.Gated, st.integers(1, 9), activations
)
experts = st.builds(
    lambda size, groups, active_groups, active, *rest: s.MixtureOfExperts(
        size * groups, active, *rest[:5], groups, active_groups, rest[5]
    ),
    small,
    small,
    small,
    small,
    plain,
    st.none() | plain,
    st.sampled_from(["softmax", "sigmoid"]),
    flags,
    st.sampled_from([1.0, 2.5]),
    flags,
)
norms = st.builds(
    s.Norm, st.sampled_from(["layer", "rms", "batch"]), st.sampled_from(["pre", "post"])
)
crosses = st.builds(
    lambda kv, group, width, flag: s.Attention(kv * group, kv, width, bias=flag),
    small,
    small,
    small,
    flags,
)


@st.composite
def specs(draw):
    """Any spec that check_spec accepts."""
    with_encoder, with_decoder = draw(st.sampled_from([(True, False), (False, True), (True, True)]))

    def stack(causal, cross):
        layers = draw(
            st.lists(
                st.builds(
                    s.Layer,
                    mixers,
                    plain | experts | st.none(),
                    norms,
                    crosses if cross else st.none(),
                    st.integers(1, 2),
                    flags,
                ),
                min_size=1,
                max_size=2,
            )
        )
        return s.Stack(tuple(layers), causal, draw(flags), draw(flags))

    spec = s.Spec(
        13,
        8,
        stack(draw(st.sampled_from([False, False, True])), False) if with_encoder else None,
        stack(draw(st.sampled_from([True, True, False])), with_encoder) if with_decoder else None,
        draw(positions),
        draw(
            st.sampled_from([s.LmHead(), s.LmHead(False, True), s.MaskedHead(), s.Pooler(), None])
        ),
        draw(st.none() | st.just(11)) if with_encoder and with_decoder else None,
        draw(flags),
        draw(st.integers(0, 2)),
        16,
        0.1,
    )
    try:
        check_spec(spec)
    except QkvError:
        assume(False)
    return spec


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    specs(), st.sampled_from(["left", "right"]), st.lists(st.integers(1, 6), min_size=2, max_size=3)
)
def test_any_model_is_batch_invariant_and_equal_with_a_cache(spec, side, lengths):
    assert from_json(to_json(spec)) == spec
    torch.manual_seed(0)
    model, rows = build(spec), [random_ids(spec, 1, n)[0] for n in lengths]
    ids, attention_mask = padded(rows, side, to=8)
    pairs = spec.encoder is not None and spec.decoder is not None
    source, source_mask = padded(
        [random_ids(spec, 1, n, source=True)[0] for n in lengths[::-1]], side, to=7
    )
    with torch.no_grad():
        memory = model.encode(source, source_mask) if pairs else None
        together = hidden_states(model, ids, memory, attention_mask)
        scale = max(1.0, together.abs().max().item())
        assert together.isfinite().all()
        for index, row in enumerate(rows):
            alone = (
                model.encode(source[index : index + 1][:, source_mask[index]]) if pairs else None
            )
            wanted = hidden_states(model, row[None], alone)[0]
            assert_close(together[index][attention_mask[index]], wanted, 1e-10 * scale)
            if spec.decoder is not None and spec.decoder.causal:
                cache = model.new_cache()
                steps = [model.decode(token[None, None], alone, cache)[0] for token in row]
                assert_close(torch.cat(steps), wanted, 1e-10 * scale)
        if spec.decoder is not None and spec.decoder.causal:
            cache, order = model.new_cache(), torch.tensor([1, 0, 1])
            model.decode(ids[:, :5], memory, cache, attention_mask[:, :5])
            cache.reorder(order)
            after = model.decode(
                ids[order][:, 5:],
                memory and memory.reorder(order),
                cache,
                attention_mask[order][:, 5:],
            )
            assert_close(
                after[attention_mask[order][:, 5:]],
                together[order][:, 5:][attention_mask[order][:, 5:]],
                1e-10 * scale,
            )


@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(specs())
def test_every_weight_of_any_model_gets_a_finite_gradient(spec):
    torch.manual_seed(0)
    model, ids = build(spec).train(), random_ids(spec, 2, 6)
    memory = (
        model.encode(random_ids(spec, 2, 5, source=True)) if spec.encoder and spec.decoder else None
    )
    out = hidden_states(model, ids, memory)
    loss = (
        out.sum()
        if spec.head is None or isinstance(spec.head, s.Pooler)
        else model.loss(out, ids, None, 0.1)
    )
    (loss + model.router_aux_loss()).backward()
    for name, weight in model.named_parameters():
        reached = weight.grad is not None and bool(weight.grad.isfinite().all())
        # Without a gradient: the router's selection bias, heads that this loss does not use, and
        # token types of a decoder.
        excused = "score_correction_bias" in name or name.startswith(
            ("lm_head", "type_embed", "embed")
        )
        assert reached or excused, name
