"""How buckets travel, as the policy decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Probe
from hvd_compress.compressors import Cast
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.feedback.states import BucketState
from hvd_compress.policies import DecisionPolicy
from hvd_compress.request.decision import Decision
from hvd_compress.session.buckets import Buckets
from hvd_compress.session.reporting import Reporting
from hvd_compress.session.step import Step


class Steering:
    """Lets the buckets of a session travel as its policy says.

    Attributes:
        policy: what decides; None before ranks have met.
        launch: hands the engine's thread a collective, in step with all ranks.
        learning_rates: gives those of the coming steps, where a front end knows the optimizer.
        unsent: names of parameters that are to have no gradient, since the last exchange has sent nothing of them; the
            same on all ranks.
        cut_anew: whether buckets were cut anew within the step under way.
    """

    def __init__(self, buckets: Buckets, step: Step, launch: Launch, reporting: Reporting) -> None:
        self._buckets, self._step, self.launch, self._reporting = buckets, step, launch, reporting
        self.policy: DecisionPolicy | None = None
        self.learning_rates: Callable[[], Sequence[float]] = tuple
        self.unsent: frozenset[str] = frozenset()
        self.cut_anew = False
        self._goes_on = False

    @property
    def controller(self) -> DecisionPolicy | None:
        """What chooses how buckets travel; None before the first exchange, and where all is fixed."""
        return self.policy if self.policy is not None and self.policy.history is not None else None

    @property
    def decider(self) -> DecisionPolicy:
        """The policy, once ranks have met."""
        assert self.policy is not None
        return self.policy

    @property
    def unit(self) -> float:
        """What gradients are multiplied by, as of mixed precision."""
        return self._buckets.loss_scale.scale or 1.0

    @property
    def bucket_states(self) -> list[BucketState]:
        """What buckets remember, by number."""
        return [bucket.state for bucket in self._buckets.every]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The buckets, by number."""
        return self._buckets.layouts

    @property
    def settled(self) -> bool:
        """Whether the policy tries nothing."""
        return self.decider.settled

    @property
    def results(self) -> list[tuple[Layout, torch.Tensor]] | None:
        """The results of the step that is over, of buckets that lie in memory; None where ranks' are not the same."""
        if not all(bucket.collective.averages for bucket in self._buckets.every):
            return None
        return [(bucket.layout, bucket.flat) for bucket in self._step.buckets if bucket.flat is not None]

    def add_results(self) -> None:
        """Add the results of the step that is over to the sums that its buckets keep."""
        for bucket in self._step.buckets:
            bucket.add_result()

    def take(self, policy: DecisionPolicy, goes_on: bool) -> None:
        """Ranks have met: this policy decides from now on. `goes_on`: with what another process has chosen."""
        self.policy, self._goes_on = policy, goes_on

    def set_buckets(
        self, step: int, layouts: Sequence[Layout], devices: Mapping[str, torch.device], engine: Engine
    ) -> None:
        """Cut buckets, as Session.set_buckets(), and let them travel."""
        self.cut_anew = self._buckets.are_launched
        dense = [layout for layout in layouts if not layout.sparse]
        decisions = list(self.decider.setup(step, dense, self.launch))
        decisions += [_as_rows(layout) for layout in layouts[len(dense) :]]
        if self._step.begun_s is not None:
            self._buckets.states.keep_commits()
        self._buckets.cut(layouts, decisions, devices, engine.capabilities.devices, self._goes_on)
        if self.cut_anew:
            self._buckets.share(self.launch, step)
        else:
            self.follow(step)

    def follow(self, step: int, decided_in: int | None = None) -> None:
        """Let buckets travel as the policy says, from step `step` on; between two steps.

        Args:
            decided_in: the step that has just ended; `step` itself, if not given.
        """
        policy, every = self.decider, self._buckets.every
        for number, decision in policy.decide(step).items():
            every[number].decide(decision)
        for number in policy.dropped(step):
            every[number].drop()
        self._buckets.share(self.launch, step)
        probes = policy.probes(step)
        for number, bucket in enumerate(every):
            bucket.probe = probes.get(number, Probe())
        self._reporting.decided(step if decided_in is None else decided_in, every, policy)

    def settle(self, step: int) -> list[tuple[Layout, Decision]]:
        """Let buckets travel as the policy says from the next step on. Return how they have travelled in this one."""
        buckets = self._step.buckets
        held = [name for bucket in buckets for name in bucket.collective.unsent(bucket.layout)]
        # A step without any gradient is an error of torch's GradScaler: one parameter keeps its zeros.
        names = sum(len(bucket.layout.names) for bucket in self._buckets.every)
        self.unsent = frozenset(held[1:] if len(held) == names else held)
        travelled = [(bucket.layout, bucket.decision) for bucket in buckets]
        self._step.release()
        self.cut_anew = False
        self.follow(step + 1, step)
        return travelled


def _as_rows(layout: Layout) -> Decision:
    return Decision(Cast(), Path("sparse-rows"), layout.device_type, "its gradient is sparse")
