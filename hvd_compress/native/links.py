"""Messages with other processes over sockets, all pairs at once, in one call without Python's lock."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from hvd_compress.errors import CommunicationError, ConfigError
from hvd_compress.native.module import compiled

_DONE, _CLOSED, _FAILED, _SILENT, _MISMATCH = range(5)  # enum End in csrc/links/links.hpp
_MOST_MS = 2**31 - 1


_all: weakref.WeakSet[Links] = weakref.WeakSet()


def _forget() -> None:
    """A process that is forked, as a worker of a DataLoader, would keep connections open when this one is gone."""
    for links in list(_all):
        if links._links is not None:
            links._links.forget()


os.register_at_fork(after_in_child=_forget)


class Links:
    """A socket for each other rank. swap() is called by one thread at a time, abort() and close() by any."""

    def __init__(self, sockets: Sequence[socket.socket | None], names: Sequence[int]) -> None:
        """Take the sockets over.

        Args:
            sockets: by rank; None for this one.
            names: by rank, what messages of errors call it.
        """
        own = sockets.index(None)
        self._links: Any = compiled.Links([-1 if each is None else each.detach() for each in sockets])
        self._names, self._own = names, own
        _all.add(self)
        # To the right neighbour first, and so on: each line has one sender and one receiver, while ranks keep step.
        self._order = [*range(own + 1, len(sockets)), *range(own)]

    def swap(
        self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor], limit_s: float, exactly: bool = True
    ) -> list[int]:
        """Send `sent[r]` to each other rank r while `received[r]` comes from it. What is empty does not travel.

        Args:
            sent: (any,) by rank, contiguous, on the CPU; this rank's own is not looked at.
            received: as much memory as is sent here, or at least as much where it need not be filled.
            limit_s: how long nothing may move.
            exactly: whether what comes must fill its memory.

        Returns:
            By rank, how many bytes have come; 0 where nothing was to.

        Raises:
            ConfigError: a tensor is not flat memory of the CPU.
            CommunicationError: a connection is closed, nothing moves any more, or ranks disagree about a length.
        """
        links = self._links  # close() may come meanwhile: sockets are closed when nobody holds it
        if links is None:
            raise CommunicationError("these connections were closed by this rank")
        out, into = ([self._part(rank, each) for rank, each in enumerate(parts)] for parts in (sent, received))
        limit_ms = int(min(1000 * limit_s, _MOST_MS))
        end, rank, error, expected, came, lengths = links.swap(out, into, self._order, exactly, limit_ms)
        if end == _DONE:
            return list(lengths)
        who = f"rank {self._names[rank]}"
        if end == _CLOSED:
            raise CommunicationError(f"{who} has closed its connection: it has ended, or given up an exchange")
        if end == _FAILED:
            raise CommunicationError(f"the connection with {who} has failed: {os.strerror(error)}")
        if end == _SILENT:
            raise CommunicationError(f"nothing has come from {who} for {limit_s:g} s")
        raise CommunicationError(
            f"{who} has sent {came} bytes where {expected} were expected: ranks exchange different tensors"
        )

    def abort(self) -> None:
        """End what runs and all that comes: they raise CommunicationError, here and on the ranks at the other ends."""
        if (links := self._links) is not None:
            links.abort()

    def close(self) -> None:
        """The same, and the system has the sockets back at once, whoever still refers to this."""
        self.abort()
        self._links = None

    def _part(self, rank: int, tensor: torch.Tensor) -> tuple[int, int, bool]:
        """Return where it lies, its bytes, and whether there is a message."""
        if not tensor.is_cpu or not tensor.is_contiguous():
            raise ConfigError(f"messages are contiguous tensors of the CPU: {tuple(tensor.shape)} on {tensor.device}")
        travels = rank != self._own and tensor.numel() > 0
        return (tensor.data_ptr(), tensor.nbytes, True) if travels else (0, 0, False)
