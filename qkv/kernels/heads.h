// The layout of tensors (batch, heads, length, width) of torch, for the operations of training.
#pragma once
#include "numbers.h"

// The same structure is HeadLayout in kernels/calling.py, field by field. The elements of a row
// (the last dimension) are contiguous; the other dimensions may be stored in any order: torch
// splits heads by a view, so the heads of one token are neighbors in memory.
struct HeadLayout {
    int32_t batch, heads, length, width;
    // Strides of batch, heads and length: of the input, of the incoming gradient, of the output.
    int64_t x[3], grad[3], out[3];
};

// Where the row of a batch index, a head and a position begins.
inline int64_t row_offset(const int64_t *strides, int batch, int head, int position) {
    return batch * strides[0] + head * strides[1] + position * strides[2];
}
