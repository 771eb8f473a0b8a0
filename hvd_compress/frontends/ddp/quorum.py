"""DDP where a manager decides before each step who takes part, and after it whether it counts: as torchft's does."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from hvd_compress import __version__
from hvd_compress.engines.leave import forgive
from hvd_compress.engines.sockets import Meeting, SocketEngine
from hvd_compress.errors import CommunicationError, PayloadError
from hvd_compress.frontends.alike import model_in_words, require_alike
from hvd_compress.frontends.ddp.hook import GradBucket, GradientHook, Result
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.frontends.handle import Handle
from hvd_compress.request.request import Request
from hvd_compress.session.checkpoint import name_of
from hvd_compress.settings import Settings
from hvd_compress.warned import warn_caller

log = logging.getLogger("hvd_compress")

_MOST_QUORUMS = 1000
"""Of which ranks remember how far they have come."""
_REFUSES = {"gathered_state_dict": "replicas come and go: save on each what state_dict() returns"}


class Manager(Protocol):
    """What is used of torchft.Manager."""

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
        exchanges: of the session, before it.
        finite: whether what all ranks brought was; None where it has not ended here.
    """

    quorum: int
    step: int
    exchanges: int
    finite: bool | None = None


class QuorumHook:
    """Exchanges the buckets of a DDP model among the ranks of the quorum, and goes on with the next quorum.

    An exchange that fails is reported to the manager, which then does not count the step. In the next quorum each rank
    learns which step was the last that counted. It takes back what its compression remembers of one that did not count,
    and keeps it of one that failed here and counted elsewhere. So what all ranks compute in steps that count is in
    results or in residuals.

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
        self._hook = self._new_hook(_nobody)
        self._met: Quorum | None = None
        self._last: _Exchange | None = None
        self._counted: dict[int, int] = {}  # by quorums, the last step of each that counts
        self._skips = self.is_behind = self._has_warned = False
        self._ranks = 1

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
            self._give_up(CommunicationError(f"another exchange of this step has failed: {self._manager.errored()}"))
        if self._skips:
            return _done(bucket.buffer())
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
            self._abort(str(error))
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
        self._skips = True
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
            self._abort(str(error))
            raise
        self._tell_of_second()
        is_replica = self._manager.is_participating()
        self._hook.is_replica, self._skips = is_replica, False
        self._hook.factor = self._ranks / self._manager.num_participants()
        self._last = _Exchange(quorum.number, self._manager.current_step(), self._hook.session.step)
        self.is_behind = not is_replica

    def _end(self) -> None:
        report = self.handle.last_step
        assert self._last is not None
        assert report is not None
        self._last = replace(self._last, finite=report.finite)

    def _tell_of_second(self) -> None:
        """What is remembered can be taken back of one exchange, and not of two, where the step does not count."""
        last = self._last
        if last is None or last.finite is None or last.step < self._manager.current_step() or self._has_warned:
            return
        self._has_warned = True
        warn_caller(
            "a second exchange in one step of the manager: if the step does not count, what compression has left out "
            "of the first one is lost. Run all backward passes but the last within model.no_sync()"
        )

    def _give_up(self, error: Exception) -> None:
        """This step counts on no rank that says so to the manager, and the others are to notice."""
        log.warning("hvd_compress: step %d does not count on this rank: %s", self._manager.current_step(), error)
        if self._manager.errored() is None:
            self._manager.report_error(error)
        self._abort(str(error))
        self._hook.complete_without_results()
        self._skips = True

    def _abort(self, why: str) -> None:
        self._hook.fail(CommunicationError(why))
        if (quorum := self._quorum()) is not None:
            quorum.meeting.end(why)

    def _note_whether_it_counts(self) -> None:
        """What is not finite counts in no residual. On a rank that is behind this is corrected where ranks meet."""
        last = self._last
        if last is not None and last.finite and self._manager.current_step() > last.step:
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
            of_ranks = engine.allgather_json(
                {
                    "failed": failed,
                    "behind": is_behind,
                    "steps": old.session.step,
                    "about": self._in_words(engine.rank),
                    "counted": list(self._counted.items()),
                }
            )
            if cannot := {rank: each["failed"] for rank, each in enumerate(of_ranks) if each["failed"]}:
                raise CommunicationError(
                    "; ".join(f"rank {rank} cannot begin its step: {cannot[rank]}" for rank in cannot)
                )
            root = _root(of_ranks)
            require_alike([each["about"] for each in of_ranks], root, engine.rank)
            self._counted = dict(of_ranks[root]["counted"][-_MOST_QUORUMS:])
            self._settle_last(old)
            own = old.handle.state_dict() if old.session.step else None
            shared = None if own is None or engine.rank != root else _settled(own, old.handle)
            settled = _broadcast(engine, shared, root)
        self._hook = self._new_hook(partial(SocketEngine, meeting, timeout_s))
        self._go_on_as(old, own, settled)
        self._met, self._ranks = quorum, len(of_ranks)
        forgive()  # what has failed is over

    def _go_on_as(self, old: GradientHook, own: Mapping[str, Any] | None, settled: Mapping[str, Any] | None) -> None:
        handle = self._hook.handle
        handle.session.steering.learning_rates = old.session.steering.learning_rates
        handle.session.services.ccr.asked = old.session.services.ccr.asked
        if (scaler := old.session.loss_scale.scaler) is not None:
            handle.follow_loss_scale(scaler)
        if settled is not None:
            handle.load_state_dict(_resumed(own, settled))
        elif own is not None:
            handle.load_state_dict(own)
        self._hook.require_working()

    def _settle_last(self, old: GradientHook) -> None:
        """Have what is remembered be that of the last step that counts."""
        last, self._last = self._last, None
        if last is None:
            return
        counts, has_ended = self._counted.get(last.quorum, -1) >= last.step, old.session.step > last.exchanges
        if has_ended and not counts and last.finite is not False:
            old.session.drop_step()
        elif counts and not has_ended:
            old.session.keep_step()

    def _new_hook(self, connect: Callable[[], SocketEngine]) -> GradientHook:
        with torch.enable_grad():
            hook = GradientHook(self._parameters, self._request, self._settings, connect, None, lambda: True, "torchft")
        hook.gives_all = True  # DDP knows of this rank alone which parameters were used
        hook.handle.front = FrontEnd(refuses=_REFUSES)  # by its place in a quorum nothing can be found again
        return hook

    def _in_words(self, rank: int) -> dict[str, str]:
        return {
            "hvd_compress": __version__,
            "the model": model_in_words(self._parameters),
            "where it lies": ", ".join(dict.fromkeys(slot.place for slot in self.handle.slots.values())),
            "what hinders it": self._settings.obstacle(rank),
            "options": self._options,
            **self.handle.session.asked(),
        }


def _nobody() -> SocketEngine:
    raise AssertionError("there is no quorum yet")


def _root(of_ranks: Sequence[Mapping[str, Any]]) -> int:
    """Return whose state all take over: of ranks that are not behind, if there are any, the first of the furthest."""
    there = [rank for rank, each in enumerate(of_ranks) if not each["behind"]] or range(len(of_ranks))
    return max(there, key=lambda rank: (of_ranks[rank]["steps"], -rank))


def _settled(own: Mapping[str, Any], handle: Handle) -> dict[str, Any]:
    """Return what a rank remembers without what it owes."""
    (kept,) = own["ranks"].values()
    debts = handle.debts(kept["states"])
    states = {kind: {} if kind in debts else each for kind, each in kept["states"].items()}
    return {**own, "ranks": {name_of(0, 1): {"residuals": {}, "states": states}}, "debts": debts}


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


def _resumed(own: Mapping[str, Any] | None, settled: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rank goes on with: what the root has that all have alike, and what this rank owes."""
    (theirs,) = settled["ranks"].values()
    (mine,) = own["ranks"].values() if own is not None else ({"residuals": {}, "states": {}},)
    scale = 1.0 if own is None else (settled["loss_scale"] or 1.0) / (own["loss_scale"] or 1.0)
    owed = {kind: {n: t * scale for n, t in mine["states"].get(kind, {}).items()} for kind in settled["debts"]}
    residuals = {name: each * scale for name, each in mine["residuals"].items()}
    kept = {"residuals": residuals, "states": {**theirs["states"], **owed}}
    state = {key: each for key, each in settled.items() if key != "debts"}
    return {**state, "ranks": {name_of(0, 1): kept}, "remembers": bool(residuals)}
