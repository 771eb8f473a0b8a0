"""The buckets of a session: cut, cut anew, and what is done to what all of them remember."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.devices import Lanes
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.feedback.loss_scale import LossScale
from hvd_compress.feedback.states import RESULT_SUM, States
from hvd_compress.request.decision import Decision
from hvd_compress.session.bucket import SessionBucket


class Buckets:
    """All buckets, by number, and what they remember.

    Attributes:
        every: the buckets.
        states: what they remember, by parameter name.
        loss_scale: the units of what they remember.
        later: decisions of buckets that had left when the policy decided anew, by number.
        committed_scale: the loss scale in whose units the last step has left what they remember.
    """

    def __init__(self, states: States, loss_scale: LossScale, lanes: Lanes, allocates_sum: bool) -> None:
        """`allocates_sum`: whether the results of steps can be summed."""
        self.every: list[SessionBucket] = []
        self.states = states
        self.later: dict[int, Decision] = {}
        self.committed_scale: float | None = None
        self.loss_scale, self._lanes, self._allocates_sum = loss_scale, lanes, allocates_sum
        self._shared: set[tuple[str, tuple[str, ...]]] = set()  # compressors and parameters with states made alike

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(bucket.layout for bucket in self.every)

    @property
    def decisions(self) -> dict[tuple[str, ...], Decision]:
        """What is decided for each bucket, by the names of its parameters; sparse ones are left out."""
        return {each.layout.names: each.decision for each in self.every if not each.layout.sparse}

    @property
    def are_launched(self) -> bool:
        """Whether any has left in the step under way."""
        return any(bucket.launched for bucket in self.every)

    def named(self, numbers: Sequence[int] | None) -> Sequence[SessionBucket]:
        """Return those of these numbers; all for None."""
        return self.every if numbers is None else [self.every[number] for number in numbers]

    def cut(
        self,
        layouts: Sequence[Layout],
        decisions: Sequence[Decision],
        devices: Mapping[str, torch.device],
        taken: Sequence[str],
        shares_sum: bool,
    ) -> None:
        """Have these buckets, and no others. Those that are as before keep what they have; one that has left in this
        step decides later. What is remembered follows its parameters.

        Args:
            devices: where gradients lie, by the layouts' places.
            taken: the kinds of devices whose memory the engine takes.
            shares_sum: whether a sum of results is that of a checkpoint, which rank 0 alone may have.
        """
        stay = {b.number: b for b, layout in zip(self.every, layouts, strict=False) if b.layout == layout}
        self.every = []
        for number, (layout, decision) in enumerate(zip(layouts, decisions, strict=True)):
            known = stay.get(number)
            if known is None:
                lane = self._lanes.lane_for(devices[layout.place], decision.device, taken)
                known = SessionBucket(number, layout, decision, lane, self.states, self._allocates_sum, shares_sum)
            elif known.launched:
                self.later[number] = decision
            else:
                known.decide(decision)
            self.every.append(known)

    def unused(self, kinds: Collection[str]) -> list[str]:
        """Return those of these kinds of what is remembered that no bucket has a use for."""
        used = {kind for bucket in self.every for kind, _ in bucket.state.current}
        used |= {"residual"} if any(bucket.state.residual is not None for bucket in self.every) else set()
        return sorted(set(kinds) - used - {RESULT_SUM})

    def mark_ready(self, number: int) -> None:
        """The calling thread has put a gradient into a bucket."""
        self.every[number].lane.mark_ready()

    def is_launched(self, number: int) -> bool:
        """Whether a bucket has left in the step under way."""
        return self.every[number].launched

    def release_gradients(self) -> None:
        """A front end may free the memory of the last gradients, and hand over others. Between two steps."""
        for bucket in self.every:
            bucket.release_gradient()

    def claim(self) -> None:
        """Take over what a checkpoint has brought, between two steps: also of buckets that had no residual."""
        for bucket in self.every:
            bucket.claim()

    @property
    def remember(self) -> bool:
        """Whether the last exchange has left anything that take_back() would take back."""
        return any(bucket.state.can_revert for bucket in self.every)

    def share(self, launch: Launch, step: int) -> None:
        """Let all ranks begin with the same, where results depend on it. Collective, where it is due."""
        if not (buckets := self._take_unshared()):
            return

        def share(engine: Engine) -> None:
            with engine.aside():  # it belongs to no step
                for bucket in buckets:
                    bucket.share(partial(engine.control.broadcast, root=0))

        launch(share, f"step {step}, state of rank 0")()

    def _take_unshared(self) -> list[SessionBucket]:
        """Return those whose ranks are to begin with the same: once for a bucket's compressor."""
        found = [(each, (repr(each.collective.compressor), each.layout.names)) for each in self.every]
        buckets = [each for each, key in found if each.alike and key not in self._shared]
        if buckets:
            self._shared |= {key for _, key in found}
        return buckets

    def take_back(self) -> None:
        """Nobody uses the result of the last step: remember what was remembered before it."""
        now = self.loss_scale.scale
        rescaled = 1.0 if self.committed_scale is None or now is None else now / self.committed_scale
        if rescaled != 1.0:  # since: what comes back is in the units of then
            self.states.scale(1 / rescaled)
        for bucket in self.every:
            bucket.state.revert()
        if rescaled != 1.0:
            self.states.scale(rescaled)

    def hold_back(self, names: Collection[str]) -> None:
        """Nobody takes the last results of these parameters: what was not sent of them waits. Between two steps.

        Nothing is communicated, and all ranks call it alike.
        """
        for bucket in self.every:
            residual, start = bucket.state.residual, 0
            for name, numel in zip(bucket.layout.names, bucket.layout.segments, strict=True):
                if residual is not None and name in names:
                    residual.restore(slice(start, start + numel))
                start += numel
