"""DDP where a manager decides before each step who takes part, and after it whether it counts: as torchft's does."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from hvd_compress import __version__
from hvd_compress.engines.sockets import Meeting, SocketEngine
from hvd_compress.errors import CommunicationError, PayloadError
from hvd_compress.frontends.alike import model_in_words, require_alike
from hvd_compress.frontends.ddp.hook import GradBucket, GradientHook, Result
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.frontends.handle import Handle
from hvd_compress.request.request import Request
from hvd_compress.session.checkpoint import name_of
from hvd_compress.settings import Settings

_KEPT = 64
"""Quorums of which ranks remember how far they have come."""


class Manager(Protocol):
    """What torchft.Manager promises."""

    def wait_quorum(self) -> None: ...

    def errored(self) -> Any: ...

    def report_error(self, e: Exception) -> None: ...

    def is_participating(self) -> bool: ...

    def num_participants(self) -> int: ...

    def current_step(self) -> int: ...


@dataclass(frozen=True)
class Quorum:
    """The ranks that a manager has brought together.

    Attributes:
        number: as the manager counts them.
        meeting: of these ranks.
    """

    number: int
    meeting: Meeting


@dataclass(frozen=True)
class _Exchange:
    """The last one that has begun on this rank.

    Attributes:
        quorum: in which it was.
        step: of the manager, which has not counted it then.
        ended: whether it has ended here.
    """

    quorum: int
    step: int
    ended: bool


class QuorumHook:
    """Exchanges the buckets of a DDP model among the ranks of the quorum, and goes on with the next quorum.

    An exchange that fails is told to the manager, which then does not count the step. In the next quorum each rank
    learns which was the last step that counted, and takes back what its compression remembers of one that did not, or
    has that stand which has failed here and counted elsewhere: so what all ranks have computed is, in each step that
    counts, in its result or in residuals.

    Attributes:
        handle: of the session that exchanges the buckets; another one in each quorum.
        is_behind: whether this rank has been given the state of another since its last step.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        request: Request,
        settings: Settings,
        manager: Manager,
        quorum: Callable[[], Quorum | None],
        options: str = "",
    ) -> None:
        """Nothing is communicated.

        Args:
            parameters: those that DDP reduces, by name.
            quorum: returns the present one, after manager.wait_quorum().
            options: what else ranks must have alike, in words.

        Raises ConfigError, UnsupportedError: as Handle.
        """
        self._parameters, self._request, self._settings = parameters, request, settings
        self._manager, self._quorum, self._options = manager, quorum, options
        self._hook = self._made(_nobody)
        self._met: Quorum | None = None
        self._last: _Exchange | None = None
        self._counted: dict[int, int] = {}  # by quorums, the last step of each that counts
        self._buffers: list[torch.Tensor] = []
        self._skips = self.is_behind = False

    @property
    def handle(self) -> Handle:
        return self._hook.handle

    def __call__(self, bucket: GradBucket) -> Result:
        """Take one bucket; the future holds the mean over the ranks that take part, when the step is over.

        Raises:
            ConfigError: this rank asks for something else than the others.
            ReplicaError: replicas differ.
        """
        if bucket.index() == 0:
            self._begin()
        if not self._skips and self._manager.errored() is not None:  # others wait for what this rank does not send
            self._give_up(CommunicationError("another exchange of this step has failed"))
        if self._skips:
            return _done(bucket.buffer())
        self._buffers.append(bucket.buffer())
        if not self._manager.is_participating():
            bucket.buffer().zero_()
        try:
            found = self._hook(bucket)
            if bucket.is_last():
                self._end()
            return found
        except (CommunicationError, PayloadError) as error:
            self._give_up(error)
            return _done(bucket.buffer())
        except BaseException as error:
            self._leave(str(error))
            raise

    def require_working(self) -> None:
        """A forward pass begins. Raises UsageError where a parameter was converted after DDP has wrapped it."""
        if not self._hook.session.failed:
            self._hook.require_working()

    def close(self) -> None:
        """Let the threads end."""
        self._hook.close()

    def _begin(self) -> None:
        self._manager.wait_quorum()
        self._skips, self._buffers = True, []
        self._note_whether_it_counts()
        quorum, failed = self._quorum(), self._manager.errored()
        try:
            if quorum is None or (quorum is self._met and (failed is not None or self._hook.session.failed)):
                raise CommunicationError(f"this rank cannot begin its step: {failed or 'there is no other quorum yet'}")
            if quorum is not self._met:
                self._meet(quorum, "" if failed is None else str(failed))
        except CommunicationError as error:
            self._give_up(error)
            return
        except BaseException as error:
            self._leave(str(error))
            raise
        is_replica = self._manager.is_participating()
        self._hook.is_replica, self._skips = is_replica, False
        self._last, self.is_behind = _Exchange(quorum.number, self._manager.current_step(), False), not is_replica

    def _end(self) -> None:
        """The exchange has ended: its results are means over all ranks of the quorum, some of which brought zeros."""
        assert self._last is not None
        self._last = _Exchange(self._last.quorum, self._last.step, True)
        ranks, counting = self._hook.session.engine.world_size, self._manager.num_participants()
        if ranks != counting:
            for buffer in self._buffers:
                buffer.mul_(ranks / counting)

    def _give_up(self, error: Exception) -> None:
        """This step counts on no rank that says so to the manager, and the others are to notice."""
        self._manager.report_error(error)
        self._leave(str(error))
        self._hook.let_go()
        self._skips = True

    def _leave(self, why: str) -> None:
        self._hook.fail(CommunicationError(why))
        if (quorum := self._quorum()) is not None:
            quorum.meeting.end(why)

    def _note_whether_it_counts(self) -> None:
        """Of a rank that was given the state of another, this is corrected where ranks meet."""
        last = self._last
        if last is not None and last.ended and self._manager.current_step() > last.step:
            self._counted[last.quorum] = last.step

    def _meet(self, quorum: Quorum, failed: str) -> None:
        """Begin with other ranks: all have alike what one remembers that is not behind, and each keeps what it owes.

        Args:
            failed: why this rank cannot, so that others do not wait for it; "" where it can.

        Raises:
            CommunicationError: not all have come, or can begin.
            ConfigError: this rank asks for something else than the others.
        """
        meeting, timeout_s, old = quorum.meeting, self._settings.timeout_s, self._hook
        old.close()
        is_behind = self.is_behind or not self._manager.is_participating()
        with closing(SocketEngine(meeting, timeout_s)) as engine:
            told = engine.allgather_json(
                {
                    "failed": failed,
                    "behind": is_behind,
                    "about": self._about(),
                    "counted": list(self._counted.items()),
                }
            )
            if cannot := {rank: each["failed"] for rank, each in enumerate(told) if each["failed"]}:
                raise CommunicationError(
                    "; ".join(f"rank {rank} cannot begin its step: {cannot[rank]}" for rank in cannot)
                )
            root = next((rank for rank, each in enumerate(told) if not each["behind"]), 0)
            require_alike([each["about"] for each in told], root, engine.rank)
            self._counted = {quorum: step for quorum, step in told[root]["counted"][-_KEPT:]}
            self._settle_last(old)
            own = old.handle.state_dict() if old.session.step else None
            settled = _broadcast(engine, own if engine.rank == root else None, root)
        self._hook = self._made(partial(SocketEngine, meeting, timeout_s))
        handle = self._hook.handle
        handle.front = FrontEnd(engine.rank, len(told))
        if settled is not None:
            handle.load_state_dict(_resumed(own, settled, handle))
        self._hook.require_working()
        self._met = quorum

    def _settle_last(self, old: GradientHook) -> None:
        """Have what is remembered be that of the last step that counts."""
        last, self._last = self._last, None
        if last is None:
            return
        counts = self._counted.get(last.quorum, -1) >= last.step
        if last.ended and not counts:
            old.session.drop_step()
        elif counts and not last.ended:
            old.session.keep_step()

    def _made(self, connect: Callable[[], SocketEngine]) -> GradientHook:
        with torch.enable_grad():
            return GradientHook(self._parameters, self._request, self._settings, connect, None, lambda: True, "torchft")

    def _about(self) -> dict[str, str]:
        asked = self._hook.session.asked()
        own = {"hvd_compress": __version__, "the model": model_in_words(self._parameters), "options": self._options}
        return {**own, **asked}


def _nobody() -> SocketEngine:
    raise AssertionError("there is no quorum yet")


def _done(buffer: torch.Tensor) -> Result:
    found: Result = Result(devices=[buffer.device] if buffer.is_cuda else [])
    found.set_result(buffer)
    return found


def _broadcast(engine: SocketEngine, state: Mapping[str, Any] | None, root: int) -> dict[str, Any] | None:
    """Return on all ranks what the root has. Collective."""
    packed = io.BytesIO()
    torch.save(state, packed)
    (length,) = engine.allgather_json(packed.tell())[root : root + 1]
    own = torch.frombuffer(bytearray(packed.getvalue()), dtype=torch.uint8)
    received = own if engine.rank == root else torch.empty(length, dtype=torch.uint8)
    engine.broadcast(received, root)
    found: dict[str, Any] | None = torch.load(io.BytesIO(received.numpy().tobytes()), weights_only=True)
    return found


def _resumed(own: Mapping[str, Any] | None, settled: Mapping[str, Any], handle: Handle) -> dict[str, Any]:
    """Return what a rank goes on with: what the root has that all have alike, and what this rank owes."""
    (theirs,) = settled["ranks"].values()
    (mine,) = own["ranks"].values() if own is not None else ({"residuals": {}, "states": {}},)
    states = {kind: mine["states"].get(kind, {}) if handle.is_debt(kind) else t for kind, t in theirs["states"].items()}
    kept = {"residuals": mine["residuals"], "states": states}
    name = name_of(handle.front.rank, handle.front.world_size)
    return {**settled, "ranks": {name: kept}, "remembers": bool(mine["residuals"])}
