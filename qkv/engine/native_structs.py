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
POINTER, INT = c.c_void_p, c.c_int32


class Matrix(c.Structure):
    _fields_ = [
        ("panels", POINTER),
        ("scales", POINTER),
        ("bias", POINTER),
        ("outputs", INT),
        ("inputs", INT),
    ]


class Positions(c.Structure):
    _fields_ = [
        ("added", POINTER),
        ("cos", POINTER),
        ("sin", POINTER),
        ("half", INT),
        ("interleaved", INT),
    ]


class Rows(c.Structure):
    _fields_ = [
        ("ids", POINTER),
        ("sequence", POINTER),
        ("slot", POINTER),
        ("position", POINTER),
        ("end", POINTER),
        ("outputs", POINTER),
        ("n", INT),
        ("n_outputs", INT),
        ("advance", INT),
    ]


class Cache(c.Structure):
    _fields_ = [
        ("keys", POINTER),
        ("values", POINTER),
        ("conv_inputs", POINTER),
        ("mask", POINTER),
        ("lengths", POINTER),
        ("sequences", INT),
        ("capacity", INT),
    ]


# Norm, Attention, Layer and Model for each number type.
STRUCTURES: dict[torch.dtype, tuple[type[c.Structure], ...]] = {}
for dtype, number in ((torch.float32, c.c_float), (torch.float64, c.c_double)):

    class Norm(c.Structure):
        _fields_ = [("gain", POINTER), ("bias", POINTER), ("eps", number), ("kind", INT)]

    class Attention(c.Structure):
        _fields_ = [
            ("norm", Norm),
            ("in_", Matrix),
            ("out", Matrix),
            ("q_norm", Norm),
            ("k_norm", Norm),
            ("heads", INT),
            ("kv_heads", INT),
            ("d_head", INT),
        ]

    class Layer(c.Structure):
        _fields_ = [
            ("self", Attention),
            ("cross", Attention),
            ("has_cross", INT),
            ("pre_norm", INT),
            ("norm", Norm),
            ("up", Matrix),
            ("down", Matrix),
            ("gated", INT),
            ("activation", INT),
            ("kernel_size", INT),
        ]

    class Model(c.Structure):
        _fields_ = [
            ("layers", c.POINTER(Layer)),
            ("n_layers", INT),
            ("d_model", INT),
            ("max_width", INT),
            ("table", POINTER),
            ("vocab", INT),
            ("scale", number),
            ("embed_norm", Norm),
            ("norm", Norm),
            ("head", Matrix),
        ]

    STRUCTURES[dtype] = Norm, Attention, Layer, Model
