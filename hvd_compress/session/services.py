"""All that watch the steps of a session, and the one order in which events come to them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from hvd_compress.engines.base import Engine
from hvd_compress.policies import DecisionPolicy
from hvd_compress.services.base import SeenStep, Service, Watched
from hvd_compress.session.ccr import CcrMeasurement
from hvd_compress.session.replicas import ReplicaCheck


class Services:
    """Tells each service of each event: the check of replicas, the policy's, the ratio, and recorders.

    Attributes:
        replicas: what checks that replicas are equal, if anything; a front end that knows parameters sets it.
        ccr: what measures the communication-to-computation ratio; a front end that knows parameters gives a profiler.
        recorders: what the environment asks guests to record; a front end that knows parameters sets it before open().
        policy: whose services are among them; None before ranks have met.
    """

    def __init__(self) -> None:
        self.replicas: ReplicaCheck | None = None
        self.ccr = CcrMeasurement()
        self.recorders: Sequence[Service] = ()
        self.policy: DecisionPolicy | None = None

    @property
    def every(self) -> Sequence[Service]:
        first = () if self.replicas is None else (self.replicas,)
        own = () if self.policy is None else self.policy.services
        return (*first, *own, self.ccr, *self.recorders)

    @property
    def hold_back(self) -> bool:
        """Whether buckets are to be handed over when the backward pass is over, and not beside it."""
        return self.ccr.holds_back or any(each.holds_back for each in self.recorders)

    def take(self, policy: DecisionPolicy) -> None:
        """Ranks meet: this policy will decide, if they agree."""
        self.policy = policy
        self.ccr.serve(policy)

    def fingerprint(self) -> Mapping[str, str]:
        """Return what must be equal on all ranks, in words."""
        return {what: said for each in self.every for what, said in each.fingerprint().items()}

    def met(self, engine: Engine) -> None:
        """Ranks have shaken hands. Collective, in the engine's thread."""
        for each in self.every:
            each.met(engine)

    def opened(self, session: Watched) -> None:
        """The policy is prepared. Services keep no session alive."""
        for each in self.every:
            each.opened(weakref.proxy(session))

    def launched(self, step: int) -> None:
        """All exchanges of a step are launched."""
        for each in self.every:
            each.launched(step)

    def exchanged(self, seen: SeenStep) -> None:
        """A step is over, and committed. Where one is recorded, replicas are compared later."""
        is_recorded = any(each.holds_back for each in self.recorders)
        for each in self.every:
            if each is not self.replicas or not is_recorded:
                each.exchanged(seen)

    def failed(self) -> None:
        """A step has failed, and nothing is exchanged any more."""
        for each in self.every:
            each.failed()

    def ended(self) -> None:
        """A step counts."""
        for each in self.every:
            each.ended()

    def end_epoch(self, step: int) -> None:
        """The program says that an epoch is over. `step`: the coming one."""
        for each in self.every:
            each.end_epoch(step)

    def close(self) -> None:
        """Nothing more comes."""
        with ExitStack() as closing:  # each, also where another one fails
            for each in self.every:
                closing.callback(each.close)
