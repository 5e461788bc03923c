"""Run inference on a model that may be in training mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode, without gradients and without autocast.

    The training mode is restored afterwards, also after an error.
    """
    training = model.training
    if training:  # visiting all modules takes longer than a step of a small model
        model.eval()
    try:
        # autocast off: the native library reads float32
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        if training:
            model.train()
