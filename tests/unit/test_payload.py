from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload


def payload(k: int = 5, numel: int = 100) -> Payload:
    return Payload({"indices": torch.arange(k, dtype=torch.int32), "values": torch.randn(k)}, numel)


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from([torch.uint8, torch.bfloat16, torch.float64]))
def test_what_is_packed_comes_out_again(first: int, second: int, dtype: torch.dtype) -> None:
    sent = Payload({"a": torch.arange(first).to(dtype), "b": torch.arange(second, dtype=torch.int32)}, 77)
    template = Payload({"a": torch.zeros(3, dtype=dtype), "b": torch.zeros(9, dtype=torch.int32)}, 77)
    received = template.unpack(sent.pack(step=4, bucket=2), step=4, bucket=2)
    assert torch.equal(received["a"], sent["a"])
    assert torch.equal(received["b"], sent["b"])
    assert sent.wire_bytes == first * dtype.itemsize + 4 * second


@pytest.mark.parametrize("numel", [0, 1, 5, 16])
def test_what_lay_in_the_memory_before_does_not_travel(numel: int) -> None:
    sent = Payload({"codes": torch.ones(numel, dtype=torch.uint8), "scales": torch.ones(numel)}, 100)
    packed = [sent.pack(4, 2, torch.full((sent.packed_bytes,), before, dtype=torch.uint8)) for before in (0, 255)]
    assert torch.equal(*packed)


def test_payloads_are_frozen() -> None:
    with pytest.raises(TypeError):
        payload().tensors["indices"] = torch.zeros(1)  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 8}, r"\(step, bucket, numel\) is \(7, 1, 100\)"),
        ({"bucket": 3}, r"this rank is at \(7, 3, 100\)"),
        ({"numel": 101}, "100"),
    ],
)
def test_a_payload_of_another_place_is_refused(change: dict[str, int], words: str) -> None:
    place = {"step": 7, "bucket": 1, "numel": 100, **change}
    packed = payload().pack(step=7, bucket=1)
    with pytest.raises(PayloadError, match=words):
        payload(numel=place["numel"]).unpack(packed, place["step"], place["bucket"])


def test_another_kind_is_refused() -> None:
    packed = Payload({"bits": torch.zeros(9, dtype=torch.uint8), "scales": torch.ones(1)}, 100).pack(0, 0)
    with pytest.raises(PayloadError, match="'indices' has dtype code"):
        payload().unpack(packed, 0, 0)
    with pytest.raises(PayloadError, match="2 tensors instead of 1"):
        Payload({"values": torch.zeros(1)}, 100).unpack(packed, 0, 0)


@given(st.integers(0, 200))
def test_a_payload_cut_off_anywhere_is_refused(length: int) -> None:
    packed = payload(12).pack(0, 0)
    if length < packed.numel():
        with pytest.raises(PayloadError):
            payload(12).unpack(packed[:length].clone(), 0, 0)


def test_what_stands_where_zero_belongs_is_refused() -> None:
    packed = payload().pack(step=7, bucket=1)
    packed[6] = 1
    with pytest.raises(PayloadError, match="1 stands where a payload has 0"):
        payload().unpack(packed, 7, 1)


@given(st.integers(0, 71), st.integers(1, 255))
def test_a_damaged_header_is_refused_or_harmless(position: int, change: int) -> None:
    """Whatever byte of the header is damaged, the tensors that come out lie within the buffer."""
    packed = payload(12).pack(0, 0)
    packed[position] = (int(packed[position]) + change) % 256
    try:
        received = payload(12).unpack(packed, 0, 0)
    except PayloadError:
        return
    assert received.wire_bytes <= packed.numel()


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(raw: bytes) -> None:
    buffer = torch.tensor(list(raw), dtype=torch.uint8)
    with pytest.raises(PayloadError):
        payload().unpack(buffer, 0, 0)


def test_what_was_allocated_is_packed_where_it_lies() -> None:
    sent = Payload.allocate({"codes": (13, torch.uint8), "scales": (2, torch.bfloat16)}, 100, torch.device("cpu"))
    sent["codes"].copy_(torch.arange(13))
    sent["scales"].fill_(0.5)
    packed = sent.pack(step=4, bucket=2)
    assert sent.lies_packed
    assert packed.data_ptr() <= sent["codes"].data_ptr() < packed.data_ptr() + packed.numel()
    copied = Payload(sent.tensors, 100).pack(step=4, bucket=2)
    assert torch.equal(packed, copied)
    assert torch.equal(sent.pack(4, 2, torch.full_like(packed, 255)), copied)
    assert torch.equal(sent.unpack(packed, 4, 2)["codes"], torch.arange(13, dtype=torch.uint8))
