"""What a rank sends of a group's parameters when FSDP gathers them, and what all make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.compressors.encodings import ALIGN, AsDtype, Encoding, aligned
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.fsdp.pieces import Pieces

FAR = 0.25
"""Where a difference has this share of the parameters' norm, as after another model's weights were written, they are
gathered exactly: steps of training move them by less."""
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
        messages = start(self._message.pack(*self._pieces.split(shard)))
        return lambda out: self._read(messages(), out)

    def kept(self) -> Finish | None:
        """Return what gives the parameters of the last gather once more, without another; None where nothing does."""
        return None

    def _read(self, messages: torch.Tensor, out: torch.Tensor) -> None:
        if not self._pieces.exact:
            self._message.read_few(messages, out)
            return
        few = out.new_empty(out.shape[0], self._pieces.few_numel)
        self._message.read_few(messages, few)
        self._pieces.spread(few, self._message.exact_of(messages), out)


class Differences(Weights):
    """What is sent of a group's parameters is their difference from the copy that all ranks have.

    The copy, (ways, numel of few bits), holds what was gathered last. Each message says in a trailer whether its rank
    wants exact parameters, and how many gathers it has taken part in. Where one rank wants them, or ranks have not
    taken part in equally many, as after an error on some, all gather once more, exactly, and so make the copy anew.
    """

    def __init__(self, pieces: Pieces, encoding: Encoding, dtype: torch.dtype) -> None:
        super().__init__(pieces, encoding, dtype)
        self._message = Message(pieces, encoding, dtype, spare=ALIGN)
        self._first = Message(pieces, AsDtype(dtype), dtype, spare=ALIGN)
        self._dtype = dtype
        self._copy: torch.Tensor | None = None
        self._exact: torch.Tensor  # as gathered last, (ways, numel of what travels as it is)
        self._loaded: torch.Tensor | None = None
        self._is_old = False  # the copy, since parameters or a copy were loaded
        self._rank = self._count = 0

    def gather(self, shard: torch.Tensor, rank: int, start: Start) -> Finish:
        few, exact = self._pieces.split(shard)
        self._rank = rank
        messages = start(self._packed(few, exact))
        return lambda out: self._end(few, exact, messages(), start, out)

    def kept(self) -> Finish | None:
        return None if self._copy is None or self._is_old else self._write

    def saved(self) -> torch.Tensor:
        """Return this rank's part of the copy, on the CPU; NaN where there is none, so that it can be loaded into."""
        if self._loaded is not None:
            return self._loaded
        if self._copy is not None and not self._is_old:
            return self._copy[self._rank].to("cpu", copy=True)
        return torch.full((self._pieces.few_numel,), torch.nan, dtype=self._dtype)

    def require_fits(self, name: str, saved: Any) -> None:
        """Raise ConfigError for what is no part of the copy of these parameters, those of module `name`."""
        if not isinstance(saved, torch.Tensor):
            raise ConfigError(f"the copy of {name} is a {type(saved).__name__}: load what state_dict() returned")
        if saved.numel() != self._pieces.few_numel:
            raise ConfigError(
                f"the copy of {name} has {saved.numel()} elements instead of {self._pieces.few_numel}: load what was "
                "saved of the same model with the same exact="
            )

    def load(self, saved: torch.Tensor | None) -> None:
        """Make the copy anew in the next gather, with this in this rank's part; None for exact parameters."""
        is_one = saved is not None and not bool(saved.isnan().all())
        self._is_old, self._loaded = True, saved.detach().clone() if saved is not None and is_one else None

    def forget(self) -> None:
        """Parameters were loaded: gather them exactly. What load() has brought and no gather has used yet stays."""
        self._is_old = True

    def _packed(self, few: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """Return the message of a difference; of nothing where there is no copy, or an old one."""
        copy, self._is_old = None if self._is_old else self._copy, False
        change = torch.zeros_like(few) if copy is None else few - copy[self._rank]
        message = self._message.pack(change, exact)
        trailer = message[-ALIGN:].view(torch.int64)
        trailer[0] = self._count
        trailer[1] = True if copy is None else change.norm() > FAR * few.norm()
        return message

    def _end(
        self, few: torch.Tensor, exact: torch.Tensor, messages: torch.Tensor, start: Start, out: torch.Tensor
    ) -> None:
        counts, wants = self._trailers(messages)
        if len(set(counts)) > 1 or any(wants):
            is_loaded = self._make_copy(few, exact, start)
            if is_loaded:  # parameters have moved since
                messages = start(self._packed(few, exact))()
                if any(self._trailers(messages)[1]):  # further than checkpoints of one training do
                    self._make_copy(few, exact, start)
                else:
                    self._take(messages)
        else:
            self._take(messages)
        self._count = max(counts) + 1
        self._write(out)
        assert self._copy is not None
        torch.nan_to_num_(self._copy, 0.0, 0.0, 0.0)  # what is not finite is so in this gather alone

    def _trailers(self, messages: torch.Tensor) -> tuple[list[int], list[int]]:
        """Return by rank how many gathers it has taken part in, and whether it wants exact parameters.

        The host waits for the messages here, on a GPU, too.
        """
        counts, wants = messages[:, -ALIGN:].contiguous().view(torch.int64).T.tolist()
        return counts, wants

    def _make_copy(self, few: torch.Tensor, exact: torch.Tensor, start: Start) -> bool:
        """Make the copy anew; return whether it is of a checkpoint on some rank. The same on all."""
        loaded, self._loaded, self._copy = self._loaded, None, None
        message = self._first.pack(few if loaded is None else loaded.to(few), exact)
        message[-ALIGN:] = loaded is not None
        messages = start(message)()
        with torch.inference_mode(False):  # an inference tensor could not be updated in training
            self._copy = few.new_empty(messages.shape[0], few.numel())
        self._first.read_few(messages, self._copy)
        self._exact = self._first.exact_of(messages).clone()
        return bool(messages[:, -ALIGN:].any())

    def _take(self, messages: torch.Tensor) -> None:
        assert self._copy is not None
        change = torch.empty_like(self._copy)
        self._message.read_few(messages, change)
        self._copy += change
        self._exact = self._message.exact_of(messages).clone()

    def _write(self, out: torch.Tensor) -> None:
        assert self._copy is not None
        self._pieces.spread(self._copy, self._exact, out)
