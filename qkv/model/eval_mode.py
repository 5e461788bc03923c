"""Inference with a model that may be in training: `eval_mode` sets it aside and restores it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode, without gradients and without autocast; its training mode is restored, also after an error."""
    training = model.training
    if training:  # going through all modules costs more than a step of a small model
        model.eval()
    try:
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):  # the native library reads float32
            yield
    finally:
        if training:
            model.train()
