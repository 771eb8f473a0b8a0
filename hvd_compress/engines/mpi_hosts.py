"""Collectives of MPI among hosts: the thread that waits for the network sleeps.

MPI's blocking calls poll. Among hosts they would poll for as long as the network takes, on a core that the training
needs: there are more threads than cores where ranks share a host, data loaders run, or cores are bought by the piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd_compress.engines import layout
from hvd_compress.engines.mpi_library import MPI
from hvd_compress.engines.polling import poll

MESSAGE_BYTES, MOST_MESSAGES = 512 << 10, 64
"""A message below `mpi_environment`'s limit leaves at once; a longer one waits for the receiver, a round more."""


def messages(tensor: torch.Tensor, most: int | None = None) -> Sequence[torch.Tensor]:
    """Return a tensor as it travels: in parts that leave at once, as many at both ends; nothing of an empty one.

    most: the elements for which the other end has memory, where these may be fewer: the last parts are then empty.
    """
    numel = tensor.numel() if most is None else most
    length = MESSAGE_BYTES // tensor.element_size()
    if numel > MOST_MESSAGES * length:
        return (tensor,)
    parts = torch.split(tensor, length) if tensor.numel() else ()
    return (*parts, *[tensor[:0]] * (-(-numel // length) - len(parts)))


def finish(*requests: MPI.Request) -> None:
    """Wait for nonblocking operations of MPI. Raises what they raise."""
    if len(requests) == 1:
        poll(requests[0].Test)
    else:
        poll(lambda: bool(MPI.Request.Testall(requests)))


def ring(comm: MPI.Intracomm, tensor: torch.Tensor, message: Callable[[torch.Tensor], list[Any]]) -> None:
    """Sum `tensor` over all ranks in place, as `algorithms.ring`, without a copy of what is sent.

    `message` makes of a tensor what MPI takes.
    """
    n, rank = comm.size, comm.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    shards = [tensor[layout.shard(tensor.numel(), n, r)] for r in range(n)]
    inbox = torch.empty_like(shards[0])  # the first one is the longest

    def pass_on(sent: torch.Tensor, received: torch.Tensor) -> None:
        finish(comm.Irecv(message(received), left), comm.Isend(message(sent), right))

    for step in range(n - 1):
        into = shards[(rank - step - 2) % n]
        received = inbox[: into.numel()]
        pass_on(shards[(rank - step - 1) % n], received)
        into.add_(received)
    for step in range(n - 1):
        pass_on(shards[(rank - step) % n], shards[(rank - step - 1) % n])
