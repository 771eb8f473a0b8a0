"""The wire format: what one rank sends of one bucket, and how it is checked on arrival."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from hvd_compress.errors import PayloadError

_MAGIC = 0x48564443  # "HVDC"
_HEADER = struct.Struct("<IHHqqq")  # magic, number of tensors, 0, step, bucket, numel
_ENTRY = struct.Struct("<qq")  # dtype code, numel of one tensor
_ALIGN = 16
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8)


@dataclass(frozen=True)
class Payload:
    """Named contiguous one-dimensional tensors that stand for a bucket of `numel` elements.

    `summable` says whether the tensors of all ranks may be added element by element (dense values, values at indices
    that all ranks share) or only gathered (plain top-k, packed signs).
    """

    tensors: Mapping[str, torch.Tensor]
    numel: int
    summable: bool = False
    _memory: torch.Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    @classmethod
    def allocate(
        cls, fields: Mapping[str, tuple[int, torch.dtype]], numel: int, device: torch.device, summable: bool = False
    ) -> Payload:
        """Return a payload to be filled, whose tensors lie where pack() puts them: that then copies nothing.

        Args:
            fields: by name, the elements and the dtype of each tensor.
        """
        entries = [(_DTYPES.index(dtype), length) for length, dtype in fields.values()]
        offsets, end = _offsets(entries)
        memory = torch.empty(end, dtype=torch.uint8, device=device)
        tensors = {
            name: memory[offset : offset + length * dtype.itemsize].view(dtype)
            for (name, (length, dtype)), offset in zip(fields.items(), offsets, strict=True)
        }
        payload = cls(tensors, numel, summable)
        object.__setattr__(payload, "_memory", memory)
        return payload

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def cut(self, length: int) -> Payload:
        """Return this payload, which allocate() made, with no more than `length` elements of its last tensor."""
        assert self._memory is not None
        name = list(self.tensors)[-1]
        found = Payload({**self.tensors, name: self[name][:length]}, self.numel, self.summable)
        object.__setattr__(found, "_memory", self._memory[: found.packed_bytes])
        return found

    @property
    def wire_bytes(self) -> int:
        """Bytes of the tensors, without the header."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    @property
    def packed_bytes(self) -> int:
        """Bytes of what pack() gives: header, tensors, and the gaps between them."""
        return _offsets(self._entries)[1]

    @property
    def lies_packed(self) -> bool:
        """Whether pack() has nothing to copy: it was allocated so."""
        return self._memory is not None

    def pack(
        self,
        step: int,
        bucket: int,
        into: torch.Tensor | None = None,
        copy: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.copy_,
    ) -> torch.Tensor:
        """Return header and tensors as one uint8 tensor (packed_bytes,), each tensor at a multiple of 16 bytes.

        Args:
            into: what to return, where the caller has memory for it; else this payload's own, where it lies packed, or
                new memory of the host. Gaps between tensors become 0 in the host's; on a device, where that would be a
                launch each, they stay as they are.
            copy: copies a tensor of this payload (second) into a part of the result (first), perhaps later.
        """
        moves = into is not None or not self.lies_packed
        into = self._memory if into is None else into
        into = torch.empty(self.packed_bytes, dtype=torch.uint8, device="cpu") if into is None else into
        entries = self._entries
        header = _HEADER.pack(_MAGIC, len(entries), 0, step, bucket, self.numel)
        header += b"".join(_ENTRY.pack(*entry) for entry in entries)
        # Without waiting, should it lie on a device: the driver keeps what it has not copied yet.
        into[: len(header)].copy_(torch.frombuffer(bytearray(header), dtype=torch.uint8), non_blocking=True)
        end = len(header)
        for offset, tensor in zip(_offsets(entries)[0], self.tensors.values(), strict=True):
            _clear(into[end:offset])
            end = offset + tensor.nbytes
            if moves:
                copy(into[offset:end], tensor.view(torch.uint8))
        _clear(into[end:])
        return into

    @property
    def _entries(self) -> list[tuple[int, int]]:
        return [(_DTYPES.index(tensor.dtype), tensor.numel()) for tensor in self.tensors.values()]

    def unpack(
        self, buffer: torch.Tensor, step: int, bucket: int, header: torch.Tensor | None = None, exact: bool = True
    ) -> Payload:
        """Read a buffer that another rank packed from the same kind of payload as this one.

        The tensors are views of `buffer`. Lengths may differ from this payload's; names, dtypes and numel may not.

        Args:
            header: where `buffer` lies on a device: the same bytes, or the first of them, in the host's memory.
            exact: whether nothing may follow.

        Raises:
            PayloadError: the buffer is cut off, of another step, bucket, numel or kind, or not a payload at all.
        """
        size = _HEADER.size + len(self.tensors) * _ENTRY.size
        raw = bytes((buffer if header is None else header)[:size].cpu().numpy())
        if len(raw) < _HEADER.size:
            raise PayloadError(f"{buffer.numel()} bytes are too few for a header of {_HEADER.size}")
        magic, count, reserved, *place = _HEADER.unpack_from(raw)
        if magic != _MAGIC:
            raise PayloadError(f"magic number {magic:#010x} instead of {_MAGIC:#010x}: not a payload")
        expected = [step, bucket, self.numel]
        if place != expected:
            raise PayloadError(f"(step, bucket, numel) is {tuple(place)}, this rank is at {tuple(expected)}")
        if reserved:
            raise PayloadError(f"{reserved} stands where a payload has 0")
        if count != len(self.tensors):
            raise PayloadError(f"{count} tensors instead of {len(self.tensors)}")
        if len(raw) < size:
            raise PayloadError(f"{buffer.numel()} bytes are too few for {count} tensor entries")
        entries = self._read_entries(raw, buffer.numel())
        offsets, end = _offsets(entries)
        if end > buffer.numel() or (exact and end < buffer.numel()):
            raise PayloadError(f"{buffer.numel()} bytes arrived, the header announces {end}")
        views = {
            name: buffer[offset : offset + length * own.element_size()].view(own.dtype)
            for (name, own), offset, (_, length) in zip(self.tensors.items(), offsets, entries, strict=True)
        }
        return Payload(views, self.numel, self.summable)

    def _read_entries(self, raw: bytes, arrived: int) -> list[tuple[int, int]]:
        entries = list(_ENTRY.iter_unpack(raw[_HEADER.size :]))
        for (name, own), (code, length) in zip(self.tensors.items(), entries, strict=True):
            if not 0 <= code < len(_DTYPES) or _DTYPES[code] != own.dtype:
                raise PayloadError(f"tensor {name!r} has dtype code {code}, expected {own.dtype}")
            if not 0 <= length <= arrived:
                raise PayloadError(f"tensor {name!r} announces {length} elements in {arrived} bytes")
        return entries


def _clear(gap: torch.Tensor) -> None:
    if gap.device.type == "cpu" and gap.numel():
        gap.zero_()


def _offsets(entries: list[tuple[int, int]]) -> tuple[list[int], int]:
    """Where each tensor starts in the packed buffer, and the buffer's length."""
    position = _aligned(_HEADER.size + len(entries) * _ENTRY.size)
    offsets = []
    for code, length in entries:
        offsets.append(position)
        position = _aligned(position + length * _DTYPES[code].itemsize)
    return offsets, position


def _aligned(position: int) -> int:
    return -(-position // _ALIGN) * _ALIGN
