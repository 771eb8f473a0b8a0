"""Copies of a training in the memory of its hosts, for the processes that torchrun starts after a failure."""

from __future__ import annotations

import logging
import math
import os
import time
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from hvd_compress.errors import ConfigError
from hvd_compress.frontends.horovod.runtime_selection import hvd
from hvd_compress.membership.kept import Copy, Kept, Moment, best

if TYPE_CHECKING:
    from hvd_compress.frontends.elastic.states import State

log = logging.getLogger("hvd_compress")

_SHARE = 0.01
"""Of the time of training, which copies may take."""


class Copies:
    """Of one training under torchrun: who keeps what, when, and who goes on from which."""

    def __init__(self) -> None:
        """Nothing is copied yet.

        Raises ConfigError where processes that torchrun starts again could not meet.
        """
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # pytorch/pytorch#135712
            raise ConfigError(
                "torchrun shares its store with the processes that it starts, and those that it starts again find "
                "addresses there of those that are gone: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where torchrun is "
                "called, with --rdzv-backend c10d or --standalone"
            )
        self._kept = Kept(next(_trainings))
        self._local_rank, self._local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        if self._local_rank == 0:
            self._kept.remove_with_agent()
        self._warned = ""
        self._attempt = self._number = self._commits = self._marked = 0
        self._next = 2  # the first commit only marks the time
        self._marked_s = self._cost_s = 0.0

    def restore(self, state: State) -> bool:
        """Go on from the newest moment that all had kept. Return whether this host has copies of it. Collective."""
        mine = self._kept.found()
        everywhere = {copy for copies in hvd.allgather_object(mine, name="elastic copies") for copy in copies}
        self._attempt = 1 + max((copy.moment.attempt for copy in everywhere), default=-1)
        chosen, lost = best(everywhere)
        if chosen is None:
            return False
        if lost and hvd.rank() == 0:
            log.warning(
                "hvd_compress: copies of ranks %s of %d went with their hosts, and what compression remembered there",
                lost,
                chosen.world_size,
            )
        here = [copy for copy in mine if copy.moment == chosen]
        whole = next((copy for copy in here if copy.is_whole), None)
        if whole is None:
            return False
        own = here[self._local_rank :: self._local_size]
        state.unpack(self._kept.load(whole), [self._kept.load(each) for each in own])
        return True

    def commit(self, state: State) -> None:
        """Between two steps: keep a copy, as often as takes a hundredth of the time. Collective where one is due."""
        self._commits += 1
        if self._commits == 1:
            self._mark()
        if self._commits < self._next:
            return
        mine_s = time.perf_counter() - self._marked_s
        since_s = max(hvd.allgather_object(mine_s, name="elastic time of steps"))
        steps_a_s = (self._commits - self._marked) / since_s
        if (left_s := self._cost_s / _SHARE - since_s) > 0:  # it is too early
            self._look_after(left_s * steps_a_s)
            return
        self._cost_s = self._keep(state)
        self._look_after(self._cost_s / _SHARE * steps_a_s)
        self._mark()

    def _look_after(self, commits: float) -> None:
        """Look again at half of what is left: steps may come to take more time, or less."""
        self._next = self._commits + max(1, math.ceil(commits / 2))

    def finish(self, state: State) -> None:
        """The training is over on all ranks: whoever is started after this finds it so. Collective."""
        self._keep(state)

    def _keep(self, state: State) -> float:
        """Keep a copy on each rank. Return the seconds that the slowest took."""
        began_s, copy = time.perf_counter(), Copy(self._moment, hvd.rank(), self._local_rank == 0)
        packed, why = state.packed(whole=copy.is_whole), ""
        nbytes = sum(each.nbytes for each in tree_leaves(packed) if isinstance(each, torch.Tensor))
        try:
            self._kept.keep(copy, packed, nbytes)
        except ConfigError as error:
            why = str(error)
        said = (time.perf_counter() - began_s, why)
        told: list[tuple[float, str]] = hvd.allgather_object(said, name="elastic times of copies")
        failed = "; ".join(f"rank {rank}: {each}" for rank, (_, each) in enumerate(told) if each)
        if not failed:
            self._kept.drop_before(copy)  # all have kept this one
        else:
            self._kept.drop(copy)
        if failed != self._warned and failed and hvd.rank() == 0:
            log.warning("hvd_compress: training goes on without a new copy in memory: %s", failed)
        self._warned = failed
        self._number += 1
        return max(taken_s for taken_s, _ in told)

    @property
    def _moment(self) -> Moment:
        return Moment(self._attempt, self._number, hvd.size())

    def _mark(self) -> None:
        self._marked, self._marked_s = self._commits, time.perf_counter()


_trainings = count()
"""Of this program, which all ranks begin in one order."""


def may_start_again() -> bool:
    """Return whether torchrun has started this process, and starts it again after a failure."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
