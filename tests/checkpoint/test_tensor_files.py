"""Tensors in safetensors files: exact both ways, and no lie in a header is believed."""

import pytest
import torch

from qkv.checkpoint.durable import read_tensors, write_tensors
from qkv.errors import QkvError


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
)
def test_tensors_come_back_bit_by_bit(tmp_path, dtype):
    table = torch.randint(0, 100, (5, 7)).to(dtype)
    tensors = {
        "whole": table,
        "turned": table.t(),
        "row": table[2],
        "again": table,
        "point": table[0, 0],
        "none": table[:0],
    }
    write_tensors(tmp_path / "a.safetensors", tensors)
    back = read_tensors(tmp_path / "a.safetensors")
    assert back.keys() == tensors.keys()
    assert all(
        torch.equal(back[name], tensors[name]) and back[name].dtype == dtype for name in tensors
    )
    assert [child.name for child in tmp_path.iterdir()] == ["a.safetensors"]


def lie(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


F32 = b'{"a":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}}'


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"\0" * 7,
        b"\0" * 64,
        b"\xff" * 64,
        lie(b"{}", length=2**62),
        lie(b"{}", length=100),
        lie(b"{", b""),
        lie(b"\xff\xfe"),
        lie(b"[]"),
        lie(b"{}", b"rest"),
        lie(F32 % (b"F32", b"2", 0, 8), b"1234"),
        lie(F32 % (b"F32", b"3", 0, 8), b"12345678"),
        lie(F32 % (b"F32", b"-2", 0, 8), b"12345678"),
        lie(F32 % (b"F99", b"2", 0, 8), b"12345678"),
        lie(F32 % (b"F32", b"2", 8, 0), b"12345678"),
        lie(F32 % (b"F32", b"2", 4, 12), b"123456789012"),
        lie(F32 % (b"F32", b"4611686018427387904,4", 0, 8), b"12345678"),
    ],
)
def test_a_lying_header_is_refused_in_one_line(tmp_path, written):
    (tmp_path / "a.safetensors").write_bytes(written)
    with pytest.raises(QkvError) as refused:
        read_tensors(tmp_path / "a.safetensors")
    line = str(refused.value)
    assert (
        line.startswith(f"{tmp_path}/a.safetensors: not a whole safetensors file (")
        and "\n" not in line
    )
    assert line.endswith("; copy or download it again")


def test_every_truncation_of_a_tensor_file_is_refused(tmp_path):
    write_tensors(tmp_path / "a.safetensors", {"w": torch.arange(6.0)})
    written = (tmp_path / "a.safetensors").read_bytes()
    for size in range(len(written)):
        (tmp_path / "a.safetensors").write_bytes(written[:size])
        with pytest.raises(QkvError, match="not a whole safetensors file"):
            read_tensors(tmp_path / "a.safetensors")


def test_a_missing_tensor_file_is_named(tmp_path):
    with pytest.raises(QkvError) as refused:
        read_tensors(tmp_path / "a.safetensors")
    assert str(refused.value) == f"{tmp_path}/a.safetensors: no such file; check the path"
