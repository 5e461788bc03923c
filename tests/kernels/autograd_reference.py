"""Compare a kernel and its gradients with torch operations and autograd in float64."""

import pytest
import torch

from qkv.kernels.calling import use_custom_gradient

DTYPES = pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str
)
VIEWS = {  # of (2, 3, 5, 8): strides as after linear layers, splits, slices and broadcasts
    "contiguous": lambda x: x,
    "heads of a view": lambda x: x.transpose(1, 2),
    "transposed rows": lambda x: x.transpose(2, 3),
    "every other": lambda x: x[..., ::2],
    "a slice": lambda x: x[:, 1:, :, 2:6],
    "broadcast positions": lambda x: x[:, :, :1].expand(-1, -1, 4, -1),
    "broadcast rows": lambda x: x[..., :1].expand(-1, -1, -1, 6),
}
LAYOUTS = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
GRADIENTS = {  # incoming gradient of an output shape
    "dense": lambda shape: weights(shape),
    "transposed": lambda shape: weights(shape[::-1]).permute(*reversed(range(len(shape)))),
    "one row for all": lambda shape: weights(shape[-1:]).expand(shape),
    "of a sum": lambda shape: torch.ones((), dtype=torch.float64).expand(shape),
}


def weights(shape):
    return torch.linspace(-1, 2, torch.Size(shape).numel(), dtype=torch.float64).view(shape)


def random_tensor(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def results(function, inputs):
    """The output, and for each of GRADIENTS the gradients of the inputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    incoming = [gradient(out.shape).to(out.dtype) for gradient in GRADIENTS.values()]
    return [out.detach()] + [
        grad for g in incoming for grad in torch.autograd.grad(out, leaves, g, retain_graph=True)
    ]


def assert_equals_autograd(kernel, reference, *inputs, dtype, tolerance):
    """The kernel in `dtype` equals the reference in float64 for the same inputs."""
    inputs = [tensor.to(dtype) for tensor in inputs]
    assert use_custom_gradient(inputs[0])
    found = results(kernel, inputs)
    expected = results(reference, [tensor.double() for tensor in inputs])
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype and ours.shape == theirs.shape
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
