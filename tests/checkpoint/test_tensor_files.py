"""safetensors files: exact round trips, and invalid headers are refused."""

import pytest
import torch

from qkv.checkpoint.durable import packed, read_tensors, write_file
from qkv.errors import QkvError


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
)
def test_tensors_round_trip_exactly(tmp_path, dtype):
    table = torch.randint(0, 100, (5, 7)).to(dtype)
    tensors = {
        "table": table,
        "transposed": table.t(),
        "row": table[2],
        "again": table,
        "point": table[0, 0],
        "none": table[:0],
    }
    write_file(tmp_path / "a.safetensors", packed(tensors))
    back = read_tensors(tmp_path / "a.safetensors")
    assert back.keys() == tensors.keys()
    assert all(
        torch.equal(back[name], tensors[name]) and back[name].dtype == dtype for name in tensors
    )
    assert [child.name for child in tmp_path.iterdir()] == ["a.safetensors"]


def malformed(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


F32 = b'{"a":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        b"\0" * 64,
        b"\xff" * 64,
        malformed(b"{}", length=2**62),
        malformed(b"{}", length=100),
        malformed(b"{", b""),
        malformed(b"\xff\xfe"),
        malformed(b"[]"),
        malformed(b"{}", b"rest"),
        malformed(F32 % (b"F32", b"2", 0, 8), b"1234"),
        malformed(F32 % (b"F32", b"3", 0, 8), b"12345678"),
        malformed(F32 % (b"F32", b"-2", 0, 8), b"12345678"),
        malformed(F32 % (b"F99", b"2", 0, 8), b"12345678"),
        malformed(F32 % (b"F32", b"2", 8, 0), b"12345678"),
        malformed(F32 % (b"F32", b"2", 4, 12), b"123456789012"),
        malformed(F32 % (b"F32", b"4611686018427387904,4", 0, 8), b"12345678"),
    ],
)
def test_an_invalid_header_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(QkvError) as refused:
        read_tensors(tmp_path / "a.safetensors")
    line = str(refused.value)
    assert (
        line.startswith(f"{tmp_path}/a.safetensors: not a valid safetensors file (")
        and "\n" not in line
    )
    assert line.endswith("; copy or download it again")


def test_every_truncation_of_a_tensor_file_is_refused(tmp_path):
    write_file(tmp_path / "a.safetensors", packed({"w": torch.arange(6.0)}))
    content = (tmp_path / "a.safetensors").read_bytes()
    for size in range(len(content)):
        (tmp_path / "a.safetensors").write_bytes(content[:size])
        with pytest.raises(QkvError, match="not a valid safetensors file"):
            read_tensors(tmp_path / "a.safetensors")


def test_a_missing_tensor_file_is_named(tmp_path):
    with pytest.raises(QkvError) as refused:
        read_tensors(tmp_path / "a.safetensors")
    assert str(refused.value) == f"{tmp_path}/a.safetensors: no such file; check the path"
