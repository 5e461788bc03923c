"""Which architectures the engine supports; other models run by their own forward.

See docs/performance.md.
"""

from torch import nn

from qkv.engine.int8 import can_be_int8
from qkv.model import spec as s
from qkv.model.attention import SdpaCore
from qkv.model.block import Block, CrossBlock
from qkv.model.head import LmHead
from qkv.model.transformer import LayerStack, Transformer

SDPA = SdpaCore()  # default for mixers without a core


def supports(model: Transformer, int8: bool = False) -> bool:
    """Whether the engine supports a model: equal blocks with full attention, no experts.

    A decoder-only model may begin with a convolution. With `int8`, the weights must be
    quantizable on this machine. False while a recording has replaced an attention core.
    """
    spec, decoder, encoder = model.spec.decoder, model.decoder, model.encoder
    if decoder is None or spec is None or not spec.causal or type(model.lm_head) is not LmHead:
        return False
    return (
        (not int8 or can_be_int8(model.embed.weight))
        and (encoder is None or model.spec.token_types == 0)
        and (encoder is None or all(has_sdpa_cores(block) for block in encoder.layers))
        and is_packable(decoder, spec, convolution=encoder is None)
    )


def is_packable(stack: LayerStack, spec: s.Stack, convolution: bool = False) -> bool:
    """Whether all blocks are equal and supported; with `convolution` the first may be one."""
    first, layer = spec.layers[0], spec.layers[-1]
    has_convolution = convolution and isinstance(first.mixer, s.Convolution) and first.repeat == 1
    return (
        len(spec.layers) == 1 + has_convolution
        and isinstance(layer.mixer, s.Attention)
        and layer.mixer.window is None
        and first.norm == layer.norm
        and layer.norm.kind != "batch"
        and not any(isinstance(part.feed_forward, s.MixtureOfExperts) for part in (first, layer))
        and all(has_sdpa_cores(block) for block in stack.layers)
    )


def has_sdpa_cores(block: nn.Module) -> bool:
    """Whether no recording has replaced an attention core of this block."""
    assert isinstance(block, Block | CrossBlock)
    parts = [block.attn, block.cross] if isinstance(block, CrossBlock) else [block.attn]
    return all(isinstance(getattr(part.branch, "core", SDPA), SdpaCore) for part in parts)
