"""Training that goes on with the ranks that are there, as Horovod's elastic training does, and loses no step for it.

In a job that `hvd-compress run --min-np` has launched, a rank that ends, or has come, ends what all others exchange:
the step under way counts on none, the ranks that are left meet, and go on with that step. torchrun ends all processes
instead, and those that it starts in their place go on from copies in memory.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hvd_compress.engines.horovod import forget_engines
from hvd_compress.engines.leave import forgive
from hvd_compress.errors import CommunicationError, JobEndedError, RanksDifferError, UsageError
from hvd_compress.frontends.alike import require_alike
from hvd_compress.frontends.elastic.copies import Copies, may_start_again
from hvd_compress.frontends.elastic.states import State
from hvd_compress.frontends.horovod.runtime_selection import hvd
from hvd_compress.membership.member import Member, known

log = logging.getLogger("hvd_compress")

_MOST = 20
"""Meetings without a step between them, after which an error is the program's own."""


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function, whose first argument is a State: it is called again whenever ranks have met anew.

    It must go on where its state says. A step that fails counts on no rank; one that has ended on some ranks alone is
    taken over by the others. Where ranks do not come and go, it is called once, after state.sync().

    Raises:
        JobEndedError: the job goes on without this process, or not at all; on all ranks with the reason.
        ConfigError: this rank has another version, model or settings than the others, which go on without it; or
            processes that torchrun starts again could not meet.
    """

    @functools.wraps(function)
    def trains(state: State, *arguments: Any, **options: Any) -> Any:
        if not hvd.is_initialized():  # as in programs for DistributedDataParallel
            hvd.init()
        own, vain, helped = known(), 0, set[str]()
        state.copies = copies = Copies() if own is None and may_start_again() else None
        is_new, before = copies is None or not copies.restore(state), state.position()
        with _leaving_when_asked(own):
            while True:
                try:
                    _meet(state, is_new, helped)
                    is_new = False
                    found = function(state, *arguments, **options)
                    if own is not None:
                        hvd.allgather_object(None, name="elastic end")  # one may have to take over the last step
                        own.finish()
                    if copies is not None:
                        copies.finish(state)
                    return found
                except RanksDifferError:  # the program's own error, which comes again
                    raise
                except CommunicationError as error:
                    if own is None:
                        raise
                    why = own.over or str(error)
                    own.fail(why)  # else what is still on its way may wait for others
                    gained, before = state.position() - before, state.position()
                    vain = 0 if gained else vain + 1
                    if vain == _MOST:
                        raise
                    _again(own)

    return trains


@contextmanager
def _leaving_when_asked(own: Member | None) -> Iterator[None]:
    """By SIGTERM, as schedulers and clouds announce the end of a machine: where the program does not take it itself."""
    if own is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    this, before = os.getpid(), list[object]()

    def asked(*_: object) -> None:
        if before or own.has_ended or os.getpid() != this:  # a second one; or nobody to hand over to; or forked
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        before.append(None)
        threading.Thread(target=own.leave, args=("SIGTERM has asked it to",), name="hvd-compress-leave").start()

    signal.signal(signal.SIGTERM, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _again(own: Member) -> None:
    """Leave, and meet those that are left."""
    hvd.shutdown()
    forget_engines()
    forgive()
    hvd.init()
    log.warning("hvd_compress: ranks have met anew, %d of them, after: %s", hvd.size(), own.why)


@dataclass(frozen=True)
class _Said:
    """What a rank says when ranks have met.

    Attributes:
        position: how far it is; -1 where it has not begun.
        steps: that it has taken.
        about: what must be the same on all ranks, by name.
        name: of its process.
        host: of that, by name.
        leaving: why it is to leave; "" where it stays.
        helped: processes whose debts it has taken over.
    """

    position: int
    steps: int
    about: Mapping[str, str]
    name: str
    host: str
    leaving: str
    helped: frozenset[str]


def _meet(state: State, is_new: bool, helped: set[str]) -> None:
    """Bring all ranks to where the furthest is, and let those leave that are to. Collective.

    Args:
        helped: processes whose debts this rank has taken over.
    """
    member = known()
    name, leaving = ("", "") if member is None else (member.name, member.leaving)
    said = _Said(
        -1 if is_new else state.position(),
        state.steps(),
        state.about(),
        name,
        socket.gethostname(),
        leaving,
        frozenset(helped),
    )
    told: list[_Said] = hvd.allgather_object(said, name="elastic positions")
    positions = [each.position for each in told]
    furthest, own = max(positions), positions[hvd.rank()]
    root = max(range(len(told)), key=lambda rank: (positions[rank], told[rank].steps))
    require_alike([each.about for each in told], root, hvd.rank())
    if 0 <= own < furthest - 1:
        raise UsageError(
            f"this rank has ended {own} exchanges, and rank {root} {furthest}: it can take one over, as all ranks "
            "exchange in one order. Let each rank take as many steps between two calls of state.commit()"
        )
    counts = 0 <= own < furthest
    bring_back = state.keep() if counts else lambda: None
    if not is_new or state.is_old:
        state.on_reset()  # what it changes, such as learning rates, is the same on all ranks after sync()
    try:
        state.sync(root, whole=min(positions) < max(furthest, 0))
    except BaseException:  # the furthest may be gone: those that are left take the step once more
        bring_back()
        raise
    if member is not None and (not is_new or state.is_old):
        state.renew(counts)
    if any(name and name in each.helped for each in told):  # it has handed over, and came once more
        state.forget_owed()
    if furthest >= 0:
        state.end_round()
    if member is not None:
        member.trains()
        if any(each.leaving for each in told):
            _let_leave(state, member, told, helped)


def _let_leave(state: State, member: Member, told: Sequence[_Said], helped: set[str]) -> None:
    """Hand over what ranks owe that leave. Collective, and raises JobEndedError on those."""
    stay = [rank for rank, each in enumerate(told) if not each.leaving]
    before = {name for each in told for name in each.helped}
    owing = [rank for rank, each in enumerate(told) if each.leaving and each.position >= 0 and each.name not in before]
    heirs = dict[int, int]()
    for place, rank in enumerate(owing if stay else ()):
        near = [each for each in stay if told[each].host == told[rank].host] or stay
        heirs[rank] = near[place % len(near)]
    if heirs:
        state.hand_over(heirs)
        helped.update(told[rank].name for rank, heir in heirs.items() if heir == hvd.rank())
        hvd.allgather_object(None, name="elastic heirs")  # else who leaves comes once more, and is known
    if told[hvd.rank()].leaving:
        hvd.shutdown()  # the others go on at once, whatever this process still does
        member.go()
        others = ", and others have what it owed" if stay else ""
        raise JobEndedError(f"{member.name}: it has left the job, as {member.leaving}{others}")
