"""Rounds: what parameters have moved since ranks last agreed is exchanged, a fragment at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import plan_buckets
from hvd_compress.errors import CommunicationError, UsageError
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.local.agreed import Agreed
from hvd_compress.frontends.local.outer import Make
from hvd_compress.frontends.local.replicas import Replicas
from hvd_compress.frontends.local.said import NOTHING, Figures, Said
from hvd_compress.request.request import Request
from hvd_compress.session import checkpoint

log = logging.getLogger("hvd_compress")

REFUSES = {
    "follow_loss_scale": "residuals are in units of parameters, which no scaler scales: leave it out",
    "profile_ccr": "gradients are not exchanged between rounds: profile the model in a DistributedDataParallel",
    "save_plan": "a plan is of gradients: write the compression that `decisions` names",
}
"""What a handle cannot do, and why."""


class Rounds:
    """Exchanges pseudo-gradients, anchor - parameter, and moves anchors by what an outer optimizer makes of their mean.

    Attributes:
        agreed: the parameters on which all ranks agree, and this rank's.
        anchors: the first of these, by name.
        handle: of what exchanges them.
        in_flight: the fragment that was launched and has not landed; None for none.
        resumes: whether a checkpoint was loaded.
        unsettled: whether this rank has learned what ranks have not agreed on.
        said: what ranks have said to each other with the last exchange.
        exchange_s: what the last exchange took, its phases together.
        exchanged: exchanges that have ended so far, the same on all ranks between two of them.
        counted: whether the last of them counts.
    """

    def __init__(
        self,
        replicas: Replicas,
        request: Request,
        *,
        outer: Make,
        fragment_count: int = 1,
        mix: float | None = None,
    ) -> None:
        """Nothing is communicated yet.

        Args:
            replicas: of the model, which agree now; names are in an order that is the same on all ranks.
            outer: returns the optimizer of the anchors.
            mix: as Agreed.
        """
        self._replicas = replicas
        sizes = replicas.sizes or {name: each.nbytes for name, each in replicas.parameters.items()}
        self.agreed = Agreed(replicas.parameters, sizes, outer, fragment_count, mix)
        self._parameters, self.anchors, self._names = self.agreed.parameters, self.agreed.anchors, self.agreed.names
        settings, connect = replicas.settings, partial(replicas.connect, request, replicas.settings)
        self.handle = Handle(self.anchors, request, settings, connect, average=True, arrivals=replicas.arrivals)
        self.handle.front = FrontEnd(
            replicas.rank,
            replicas.world_size,
            replicas.shard,
            trained=self._parameters.values,
            refuses=REFUSES,
        )
        self._numbers: list[tuple[int, ...]] = []
        self._flats: list[torch.Tensor] = []
        self.resumes = False
        self.in_flight: int | None = None
        self._landing: dict[str, torch.Tensor] | None = None  # what has come of it; empty where that does not count
        self._told: Callable[[], list[list[float]]] | None = None  # waits for what ranks say of what is in flight
        self.said = Said(self.count)
        self.exchange_s = 0.0
        self.unsettled = False
        self._launched: dict[str, torch.Tensor] = {}  # parameters as they were when it was launched, if it lands late
        self._has_ended = False  # as the session sees it, before ranks have told each other
        self._given_up: tuple[int, dict[str, torch.Tensor]] | None = None
        self.exchanged, self.counted = 0, True

    @property
    def count(self) -> int:
        """The number of fragments."""
        return len(self._names)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.handle.front.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.handle.front.world_size

    def open(self, options: str = "") -> None:
        """Meet, and agree on the parameters as they are, or on those of a checkpoint. All ranks call it.

        Args:
            options: those of the program, and where this rank stands, compared between ranks.

        Raises:
            ConfigError: ranks differ, as in Session.open().
            UsageError: the model was moved or converted since.
        """
        self.agreed.require_where_they_were()
        if not self.resumes:
            self.agreed.reset()
        session = self.handle.session
        session.open(
            [name for names in self._names for name in names],
            options=f"{self.agreed.settings}, {options}",
        )
        layouts: list[Layout] = []
        for names in self._names:
            cut = plan_buckets(names, self.handle.slots, self._replicas.settings.fusion_threshold_bytes)
            self._numbers.append(tuple(range(len(layouts), len(layouts) + len(cut))))
            layouts += cut
        session.set_buckets(layouts, self.handle.devices)
        devices = self.handle.devices
        self._flats = [torch.empty(each.numel, dtype=each.dtype, device=devices[each.place]) for each in layouts]

    @torch.no_grad()
    def reduce(self) -> None:
        """Replace gradients by their mean over all ranks, as each step of synchronous training does.

        A gradient that is missing counts as zero. Raises ReplicaError: the ranks' parameters differ.
        """
        session = self.handle.session
        self._check_replicas_of(self._parameters)
        session.begin_step()
        self._replicas.take_gradients()
        for number, flat in enumerate(self._flats):
            for name, part in self._parts(number).items():
                gradient = self._parameters[name].grad
                part.zero_() if gradient is None else part.copy_(gradient)
            session.buckets.mark_ready(number)
            session.submit(number, flat)
        report = session.end_step()
        self.exchanged, self.counted = self.exchanged + 1, report.finite
        for number in range(len(self._flats)):
            for name, part in self._parts(number).items():
                parameter = self._parameters[name]
                if parameter.grad is not None:
                    parameter.grad.copy_(part)
                elif parameter.requires_grad:
                    parameter.grad = part.clone()
        self._replicas.give_gradients()

    @torch.no_grad()
    def begin(self) -> None:
        """Local steps begin: ranks agree on the parameters as they are. What gradients have left is forgotten."""
        self.agreed.reset()
        self.handle.session.states.scale(0.0)

    def mean(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by their mean over all ranks, uncompressed; between two steps. All ranks call it.

        One that is not finite on a rank does not count there.
        """
        if tensors:
            self.handle.session.gathering.mean(tensors)

    @torch.no_grad()
    def meet(self) -> None:
        """Synchronous steps begin, unless some rank leaves: exchange all fragments, and what feedback still keeps."""
        if self.in_flight is not None:
            self.land()
        for fragment in range(self.count):
            self.launch(fragment)
            self.land()
        if self.said.some_leave:
            return
        self.said.require_agreement()
        for name, kept in self.handle.session.states.state_dict().items():
            self._parameters[name].detach().sub_(kept.view(self.anchors[name].shape))
        self.mean([each.detach() for each in self._parameters.values()])
        self.agreed.reset()
        self.handle.session.states.scale(0.0)
        self.unsettled = False

    def gather(self, figures: tuple[float, float]) -> tuple[float, float]:
        """Return the figures of the slowest rank, between two steps. All ranks call it."""
        first, second = zip(*self.handle.session.gathering.figures(figures), strict=True)
        return max(first), max(second)

    @torch.no_grad()
    def launch(
        self,
        fragment: int,
        *,
        lands_late: bool = False,
        figures: Figures = NOTHING,
        length: int = 0,
        weight: float = 1.0,
    ) -> None:
        """Begin to exchange what a fragment has moved since it last landed; if it lands late, training goes on.

        Args:
            figures: seconds of a step and of an exchange, and the cosine between what two ranks move in a step, as
                this rank sees them.
            length: steps of the round; 0 where none is to follow.
            weight: the share of its steps that this rank has taken, in [0, 1].
        """
        assert self.in_flight is None, "one after the other"
        session, self.in_flight, self._has_ended = self.handle.session, fragment, False
        self._check_replicas_of(self.anchors)
        session.begin_step(self._numbers[fragment])
        energy = 0.0
        for number in self._numbers[fragment]:
            for name, part in self._parts(number).items():
                torch.sub(self.anchors[name], self._parameters[name], out=part)
            if weight != 1:
                self._flats[number].mul_(weight)
            energy += _energy(self._flats[number])
            session.buckets.mark_ready(number)
            session.submit(number, self._flats[number])
        self._told = session.gathering.begin(
            self.said.own(energy, figures, length, weight), "what ranks say of their round"
        )
        if lands_late:
            self._launched = {name: self._parameters[name].detach().clone() for name in self._names[fragment]}

    @torch.no_grad()
    def land(self) -> bool:
        """Wait for what is in flight, and go on from the anchors that it has moved. Return whether it counts.

        Where a rank has brought what is not finite, no anchor moves, a warning of the session says so once, and the
        next round of the fragment has it all. That rank goes on from the anchors with the parameters concerned.

        Raises:
            CommunicationError, PayloadError: the exchange failed.
            ReplicaError: too many rounds in a row have not counted.
        """
        results = self.wait()
        assert self.in_flight is not None
        fragment, launched = self.in_flight, self._launched
        self.in_flight, self._landing, self._launched = None, None, {}
        self.exchanged, self.counted = self.exchanged + 1, bool(results)
        if not results:
            self.agreed.give_up_infinite(fragment)
            self.said.require_rounds_that_count()
            return False
        self.agreed.step(fragment, results)
        self.agreed.go_on(fragment, launched, self.said.leaving)
        return True

    def wait(self) -> Mapping[str, torch.Tensor]:
        """Wait for what is in flight, which lands later; return mean pseudo-gradients, none where they do not count.

        Raises:
            CommunicationError, PayloadError: the exchange failed.
            ConfigError: ranks take rounds of other numbers of steps.
        """
        assert self.in_flight is not None, "nothing is in flight"
        if self._landing is None:
            report, self._has_ended = self.handle.session.end_step(), True
            self.exchange_s = report.compress_s + report.communicate_s + report.decompress_s
            numbers = self._numbers[self.in_flight] if report.finite else ()
            assert self._told is not None
            mean_energy = sum(_energy(self._flats[number]) for number in numbers)
            if self.said.take(self._told(), self.in_flight, report.finite, mean_energy):
                assert self.said.report is not None
                self.handle.session.reporting.take(self.said.report.figures())
            if 0 < self.said.weight != self.world_size:
                for number in numbers:
                    self._flats[number].mul_(self.world_size / self.said.weight)
            self._landing = {name: part for number in numbers for name, part in self._parts(number).items()}
        return self._landing

    def leave(self) -> bool:
        """Ranks are to meet anew: land what is on its way, or give it up where it has failed. Return whether it counts.

        What was given up, catch_up() may need.
        """
        if self.in_flight is None:
            return False
        if self._landing is not None or not (self.handle.session.failed or self._has_ended):
            try:
                return self.land()
            except CommunicationError as error:
                log.info("hvd_compress: %s; what rank %d was exchanging, it brings once more", error, self.rank)
        self._given_up = self.in_flight, self._launched
        self.in_flight, self._landing, self._launched = None, None, {}
        return False

    def catch_up(self, state: Mapping[str, Any]) -> int | None:
        """Go on from another rank's anchors, where an exchange has ended that was given up here; return its fragment.

        It was one of gradients for None.

        Args:
            state: of the other rank, by state_dict() of `agreed`.
        """
        self.agreed.load_state_dict(state)
        if self._given_up is None:
            self.agreed.return_to()
            return None
        fragment, launched = self._given_up
        self.agreed.go_on(fragment, launched, self.said.leaving)
        return fragment

    def renew(self, other: Rounds, *, counts: bool, forgets: bool) -> None:
        """Let another one, over other ranks, go on between two exchanges. Threads of this one end.

        Args:
            counts: whether what was given up has ended on other ranks.
            forgets: whether what was exchanged were gradients, and will be parameters.
        """
        session = self.handle.session
        session.close()
        if counts and not self._has_ended:
            session.keep_step()
        elif self._has_ended and not counts and self._given_up is not None:
            session.drop_step()
        if forgets:
            session.states.scale(0.0)
        saved = checkpoint.save(session, other.rank, other.world_size)
        other.load_state_dict({**self.state_dict(), "exchange": saved, "world_size": other.world_size})
        other.exchanged, other.counted, other.unsettled = self.exchanged, self.counted, self.unsettled

    def state_dict(self) -> dict[str, Any]:
        """Return anchors, outer state, what is remembered and what is in flight. It waits for that, and communicates
        nothing of its own."""
        results = {} if self.in_flight is None else self.wait()
        return {
            **self.agreed.state_dict(),
            "in_flight": self.in_flight,
            "results": {name: result.clone() for name, result in results.items()},
            "launched": self._launched,
            "exchange": self.handle.state_dict(),
            "world_size": self.world_size,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what state_dict() gave, also in the middle of a round; with other ranks, from the anchors.

        Raises ConfigError for a state of other parameters or fragments; UsageError while something is in flight.
        """
        if self.in_flight is not None:
            raise UsageError("load_state_dict() while an exchange is on its way: call it before the first step")
        self.agreed.load_state_dict(state)
        self.resumes = True
        self.said.forget()
        self.handle.load_state_dict(state["exchange"])
        if state["world_size"] != self.world_size:
            self.agreed.return_to()
            return
        self.in_flight = state["in_flight"]
        if self.in_flight is not None:
            at = {name: anchor.device for name, anchor in self.anchors.items()}
            self._landing = {name: each.to(at[name], copy=True) for name, each in state["results"].items()}
            self._launched = {name: each.to(at[name], copy=True) for name, each in state["launched"].items()}

    def close(self) -> None:
        """Let the threads end; say so where finish() was forgotten."""
        if self.unsettled and not self.rank:
            log.warning(
                "hvd_compress: local steps end with some that ranks have not agreed on: call finish() on every rank, "
                "before the model is evaluated or saved"
            )
        self.handle.session.close()

    def _check_replicas_of(self, alike: Mapping[str, torch.Tensor]) -> None:
        """Choose what the check of replicas in the coming exchange compares: what is equal on all ranks now."""
        check = self.handle.session.services.replicas
        assert check is not None
        check.look_at(alike)

    def _parts(self, number: int) -> Mapping[str, torch.Tensor]:
        layout = self.handle.session.buckets.every[number].layout
        parts: Sequence[torch.Tensor] = torch.split(self._flats[number], list(layout.segments))
        return {name: part.view(self.anchors[name].shape) for name, part in zip(layout.names, parts, strict=True)}


def _energy(flat: torch.Tensor) -> float:
    norm = torch.linalg.vector_norm(flat, dtype=torch.promote_types(flat.dtype, torch.float32))
    return float(norm) ** 2
