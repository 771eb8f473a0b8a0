"""What a rank sends of a group's parameters when FSDP gathers them, and what all make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.frontends.fsdp.encodings import ALIGN, AsDtype, Encoding, aligned
from hvd_compress.frontends.fsdp.pieces import Pieces

Messages = Callable[[], torch.Tensor]
"""Waits for the messages of all ranks, and returns them, (ways, nbytes) uint8."""
Start = Callable[[torch.Tensor], Messages]
"""Begins to gather messages, this rank's being (nbytes,) uint8."""
Finish = Callable[[torch.Tensor], None]
"""Waits for a gather, and writes the parameters of all ranks, (ways, numel)."""


@dataclass(frozen=True)
class Message:
    """Some elements in few bits, then the others as they are, each from a multiple of ALIGN bytes on.

    Attributes:
        pieces: which elements of a shard are which.
        encoding: of few bits.
        dtype: of the shard.
        spare: bytes at the end for something else.
    """

    pieces: Pieces
    encoding: Encoding
    dtype: torch.dtype
    spare: int = 0

    @property
    def nbytes(self) -> int:
        return self._exact_start + aligned(self._exact_bytes) + self.spare

    def pack(self, few: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """Return the message of few (pieces.few_numel,) and exact (pieces.exact_numel,)."""
        message = torch.empty(self.nbytes, dtype=torch.uint8, device=few.device)
        if few.numel():
            self.encoding.write(few, message[: self._few_bytes])
        message[self._exact_start :][: self._exact_bytes].view(self.dtype).copy_(exact)
        return message

    def read_few(self, messages: torch.Tensor, out: torch.Tensor) -> None:
        """Read the few bits of messages (ways, nbytes) to `out` (ways, few_numel), whose rows are contiguous."""
        if out.shape[1]:
            for message, row in zip(messages, out, strict=True):
                self.encoding.read(message[: self._few_bytes], row)

    def exact_of(self, messages: torch.Tensor) -> torch.Tensor:
        """Return what has travelled as it is, a view (ways, exact_numel)."""
        return messages[:, self._exact_start :][:, : self._exact_bytes].view(self.dtype)

    @property
    def _few_bytes(self) -> int:
        return self.encoding.nbytes(self.pieces.few_numel)

    @property
    def _exact_start(self) -> int:
        return aligned(self._few_bytes)

    @property
    def _exact_bytes(self) -> int:
        return self.pieces.exact_numel * self.dtype.itemsize


class Weights:
    """Parameters of a group are rounded anew in each gather: nothing is remembered.

    Each rank decodes its own message, too, so that all compute with the same parameters.
    """

    def __init__(self, pieces: Pieces, encoding: Encoding, dtype: torch.dtype) -> None:
        self._pieces, self._message = pieces, Message(pieces, encoding, dtype)

    def gather(self, shard: torch.Tensor, rank: int, start: Start) -> Finish:
        """Begin to gather shards, this rank's being (numel,)."""
        messages = start(self._message.pack(*self._parts(shard)))
        return lambda out: self._read(messages(), out)

    def kept(self) -> Finish | None:
        """Return what gives the parameters of the last gather once more, without another; None where nothing does."""
        return None

    def _parts(self, shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._pieces.joined(shard, self._pieces.few), self._pieces.joined(shard, self._pieces.exact)

    def _read(self, messages: torch.Tensor, out: torch.Tensor) -> None:
        if not self._pieces.exact:
            self._message.read_few(messages, out)
            return
        few = out.new_empty(out.shape[0], self._pieces.few_numel)
        self._message.read_few(messages, few)
        self._pieces.spread(few, self._message.exact_of(messages), out)


class Differences(Weights):
    """What is sent of a group's parameters is their difference from the copy that all ranks have.

    The copy, (ways, numel of few bits), holds what was gathered last. The first gather makes it: of exact parameters,
    or of what each rank had in its part of the copy when a checkpoint was saved.
    """

    def __init__(self, pieces: Pieces, encoding: Encoding, dtype: torch.dtype) -> None:
        super().__init__(pieces, encoding, dtype)
        self._first = Message(pieces, AsDtype(dtype), dtype, spare=ALIGN)
        self._copy: torch.Tensor | None = None
        self._exact: torch.Tensor  # as gathered last, (ways, numel of what travels as it is)
        self._loaded: torch.Tensor | None = None
        self._rank = 0

    def gather(self, shard: torch.Tensor, rank: int, start: Start) -> Finish:
        few, exact = self._parts(shard)
        if self._copy is None:
            self._rank = rank
            self._copy, has_moved = self._made_copy(few, exact, start)
            if not has_moved:
                return self._write
        messages = start(self._message.pack(few - self._copy[rank], exact))
        return lambda out: self._read(messages(), out)

    def kept(self) -> Finish | None:
        return None if self._copy is None else self._write

    def saved(self) -> torch.Tensor | None:
        """Return this rank's part of the copy, on the CPU; None where there is none."""
        return self._loaded if self._copy is None else self._copy[self._rank].to("cpu", copy=True)

    def require_fits(self, name: str, saved: torch.Tensor) -> None:
        """Raise ConfigError for what is no part of the copy of these parameters, those of module `name`."""
        if saved.numel() != self._pieces.few_numel:
            raise ConfigError(
                f"the copy of {name} has {saved.numel()} elements instead of {self._pieces.few_numel}: load what was "
                "saved of the same model with the same exact="
            )

    def load(self, saved: torch.Tensor | None) -> None:
        """Make the copy anew in the next gather, with this in this rank's part; None for exact parameters."""
        self._copy, self._loaded = None, None if saved is None else saved.detach().clone()

    def forget(self) -> None:
        """Parameters were written otherwise than by training: gather them exactly, unless there is no copy yet."""
        if self._copy is not None:
            self._copy = None

    def _made_copy(self, few: torch.Tensor, exact: torch.Tensor, start: Start) -> tuple[torch.Tensor, bool]:
        """Return the copy, and whether it is of a checkpoint, after which parameters have moved; same on all ranks."""
        loaded, self._loaded = self._loaded, None
        message = self._first.pack(few if loaded is None else loaded.to(few), exact)
        message[-ALIGN:] = loaded is not None
        messages = start(message)()
        with torch.inference_mode(False):  # as training goes on with it
            copy = few.new_empty(messages.shape[0], few.numel())
        self._first.read_few(messages, copy)
        self._exact = self._first.exact_of(messages).clone()
        return copy, bool(messages[:, -ALIGN:].any())

    def _read(self, messages: torch.Tensor, out: torch.Tensor) -> None:
        assert self._copy is not None
        change = torch.empty_like(self._copy)
        self._message.read_few(messages, change)
        self._copy += change
        self._exact = self._message.exact_of(messages).clone()
        self._write(out)
        torch.nan_to_num_(self._copy, 0.0, 0.0, 0.0)  # what is not finite is so in this gather alone

    def _write(self, out: torch.Tensor) -> None:
        assert self._copy is not None
        self._pieces.spread(self._copy, self._exact, out)
