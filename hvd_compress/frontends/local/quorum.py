"""Local steps where a manager decides in each round who takes part, and whether it counts: as torchft's does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hvd_compress.buckets.plan import plan_buckets
from hvd_compress.frontends.ddp import quorum
from hvd_compress.frontends.ddp.quorum import Quorum, QuorumHook
from hvd_compress.frontends.local.agreed import Agreed
from hvd_compress.frontends.local.outer import Make
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings


class Manager(quorum.Manager, Protocol):
    """What torchft.Manager promises."""

    def start_quorum(self) -> None: ...

    def should_commit(self) -> bool: ...


@dataclass(frozen=True)
class _Bucket:
    """What QuorumHook takes, with anchors for parameters."""

    number: int
    last: bool
    flat: torch.Tensor
    anchors: Sequence[torch.Tensor]

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.last

    def buffer(self) -> torch.Tensor:
        return self.flat

    def parameters(self) -> list[torch.Tensor]:
        return list(self.anchors)


class QuorumSteps:
    """Exchanges what parameters have moved since ranks last agreed, once in several steps.

    A round that does not count takes nothing back: what this rank has learned in it goes into the next one. A rank that
    was away, or has come, goes on from the parameters on which the others agree.

    Attributes:
        agreed: the parameters on which ranks agree, and this rank's.
        hook: exchanges the buckets.
    """

    def __init__(
        self,
        manager: Manager,
        parameters: Mapping[str, torch.Tensor],
        request: Request,
        settings: Settings,
        now: Callable[[], Quorum | None],
        *,
        every: int,
        outer: Make,
        before_writing: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is communicated.

        Args:
            parameters: what this rank trains, by name; of a sharded model its shards.
            now: returns the present quorum, after manager.wait_quorum().
            every: steps in a round.
            outer: returns the optimizer of the anchors.
            before_writing: called before parameters are written.

        Raises ConfigError, UnsupportedError: as Handle.
        """
        self._manager, self._every, self._before_writing = manager, every, before_writing
        self.agreed = Agreed(parameters, {name: each.nbytes for name, each in parameters.items()}, outer, 1, None)
        self.hook = QuorumHook(self.agreed.anchors, request, settings, manager, now, self.settings)
        slots = self.hook.handle.slots
        self._layouts = plan_buckets(list(parameters), slots, settings.fusion_threshold_bytes)
        devices = self.hook.handle.devices
        self._flats = [torch.empty(each.numel, dtype=each.dtype, device=devices[each.place]) for each in self._layouts]
        self._steps, self._is_given = 0, False

    @property
    def settings(self) -> str:
        """What ranks must have alike, in words."""
        return f"every={self._every}, {self.agreed.settings}"

    def after_step(self, *_: Any) -> None:
        """The optimizer has taken a step."""
        self._steps += 1
        if self._steps >= self._every:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> bool:
        """End the round. Return whether it counts here."""
        self._manager.start_quorum()
        self._manager.wait_quorum()
        self._before_writing()
        self._return_where_given()
        for number, (layout, flat) in enumerate(zip(self._layouts, self._flats, strict=True)):
            for name, part in self._parts(number).items():
                torch.sub(self.agreed.anchors[name], self.agreed.parameters[name], out=part)
            anchors = [self.agreed.anchors[name] for name in layout.names]
            self.hook(_Bucket(number, number == len(self._layouts) - 1, flat, anchors))
        counts = self._manager.should_commit()
        self._return_where_given()
        if not counts:
            return False
        self._steps = 0
        report = self.hook.handle.last_step
        if report is None or not report.finite:  # a rank may have no part of a small model
            self.agreed.give_up_infinite(0)
            return True
        self.agreed.step(
            0, {name: part for number in range(len(self._flats)) for name, part in self._parts(number).items()}
        )
        self.agreed.go_on(0, {}, False)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters on which ranks agree, and what moves them."""
        return self.agreed.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what another rank has, without what this one alone has learned."""
        self.agreed.load_state_dict(state)
        self.hook.is_behind = self._is_given = True

    def _return_where_given(self) -> None:
        """The program's own state may have come after that, with what the other rank has learned in its round."""
        if self._is_given:
            self.agreed.return_to()
            self._is_given = False

    def _parts(self, number: int) -> dict[str, torch.Tensor]:
        layout = self._layouts[number]
        parts: Sequence[torch.Tensor] = torch.split(self._flats[number], list(layout.segments))
        return {n: part.view(self.agreed.anchors[n].shape) for n, part in zip(layout.names, parts, strict=True)}
