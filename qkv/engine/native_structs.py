"""ctypes structures and codes of kernels/api.h, field by field."""

import ctypes as c
from enum import IntEnum

import torch

from qkv.model.feed_forward import ACTIVATIONS


class NormKind(IntEnum):
    NONE, LAYER, UNIT = 0, 1, 2


class Activation(IntEnum):
    RELU, RELU2, GELU, GELU_TANH, SILU = 0, 1, 2, 3, 4


ACTIVATION_CODES = {}  # by function
for code in Activation:
    ACTIVATION_CODES[ACTIVATIONS[code.name.lower()]] = code


def pointers(*names: str) -> list[tuple[str, type]]:
    return [(name, c.c_void_p) for name in names]


def ints(*names: str) -> list[tuple[str, type]]:
    return [(name, c.c_int32) for name in names]


class Matrix(c.Structure):
    _fields_ = pointers("panels", "scales", "bias") + ints("outputs", "inputs")


class Positions(c.Structure):
    _fields_ = pointers("added", "cos", "sin") + ints("half", "interleaved")


class Rows(c.Structure):
    _fields_ = [
        *pointers("ids", "sequence", "slot", "position", "end", "outputs"),
        *ints("n", "n_outputs", "advance"),
    ]


class Cache(c.Structure):
    _fields_ = [
        *pointers("keys", "values", "conv_inputs", "mask", "lengths"),
        *ints("sequences", "capacity"),
    ]


# Norm, Attention, Layer and Model for each number type.
STRUCTURES: dict[torch.dtype, tuple[type[c.Structure], ...]] = {}
for dtype, number in ((torch.float32, c.c_float), (torch.float64, c.c_double)):

    class Norm(c.Structure):
        _fields_ = [*pointers("gain", "bias"), ("eps", number), *ints("kind")]

    class Attention(c.Structure):
        _fields_ = [
            ("norm", Norm),
            ("in_", Matrix),
            ("out", Matrix),
            ("q_norm", Norm),
            ("k_norm", Norm),
            *ints("heads", "kv_heads", "d_head"),
        ]

    class Layer(c.Structure):
        _fields_ = [
            ("self", Attention),
            ("cross", Attention),
            *ints("has_cross", "pre_norm"),
            ("norm", Norm),
            ("up", Matrix),
            ("down", Matrix),
            *ints("gated", "activation", "kernel_size"),
        ]

    class Model(c.Structure):
        _fields_ = [
            ("layers", c.POINTER(Layer)),
            *ints("n_layers", "d_model", "max_width"),
            *pointers("table"),
            *ints("vocab"),
            ("scale", number),
            ("embed_norm", Norm),
            ("norm", Norm),
            ("head", Matrix),
        ]

    STRUCTURES[dtype] = Norm, Attention, Layer, Model
