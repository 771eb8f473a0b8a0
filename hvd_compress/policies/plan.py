"""The policy that decides as a plan says, from a file, checked first."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import torch

from hvd_compress import collectives, schema
from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.plan import Part
from hvd_compress.compressors import Cast, Compressor
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.policies.base import DecisionPolicy
from hvd_compress.policies.fixed import decide
from hvd_compress.policies.open_paths import left_open
from hvd_compress.policies.plan_schema import Plan, Treatment, read
from hvd_compress.policies.prices import Prices, measure
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import PolicySettings, Request, compression_device
from hvd_compress.settings import Settings

log = logging.getLogger("hvd_compress")


@dataclasses.dataclass(frozen=True)
class PlanFile(PolicySettings):
    """A plan that was read; ranks compare the digest of what it says."""

    digest: str
    plan: Plan = dataclasses.field(repr=False)

    @classmethod
    def read(cls, path: str | FilePath) -> PlanFile:
        """Read a file. Raises PlanError."""
        if not isinstance(path, (str, FilePath)):
            raise PlanError(f"a plan is the path of a file, not {path!r}")
        plan = read(path)
        said = json.dumps(plan.model_dump(mode="json"), sort_keys=True)
        return cls(hashlib.sha256(said.encode()).hexdigest()[:16], plan)

    @property
    def compressors(self) -> tuple[Compressor, ...]:
        plan = self.plan
        treatments = [*plan.buckets, *plan.patterns, *([] if plan.default is None else [plan.default])]
        return tuple(treatment.built() for treatment in treatments)

    def make(self, request: Request, settings: Settings) -> PlannedPolicy:
        return PlannedPolicy(self.plan)


RECUT = 2
"""After this number of a process's steps buckets stay as they are: in its second one DDP cuts them anew, in the order
in which gradients came."""


class PlannedPolicy(DecisionPolicy):
    """Decides as a plan says. Where a front end cuts buckets itself, as DDP does, a bucket with several treatments is
    sent dense."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._mixed: list[tuple[Layout, int]] = []  # buckets, each with its number of treatments
        self._told = False
        self._first: int | None = None  # step, of this process
        self._prices: Prices | None = None

    def prepare(self, engine: Engine, parameters: Sequence[Layout]) -> None:
        """Check that the plan fits. Raises PlanError with the differences, on every rank alike."""
        super().prepare(engine, parameters)
        found = list(self._plan.differences(parameters, engine.world_size))
        if not found:
            found = [words for layout in parameters if (words := self._obstacle(layout))]
        if found:
            raise PlanError(
                f"the plan does not fit: {schema.summary(found)}. Write one for this job with save_plan(), or change it"
            )
        if self._plan.engine not in (None, engine.name.lower()) and self.rank == 0:
            log.warning(
                "hvd_compress: the plan was made for engine %r, and this job has %s, over which its times may be "
                "others: say Compression.plan(...).by(engine=%r) where the job can, or profile and plan over this one",
                self._plan.engine,
                engine.name,
                self._plan.engine,
            )
        if self.measuring_s is not None:
            treated = [(self._plan.treatment(layout.names[0]), layout) for layout in parameters]
            asked = ((treatment.request(), layout) for treatment, layout in treated if treatment.collective == "auto")
            self._prices = measure(engine, left_open(asked, self.capabilities), self.measuring_s)

    def _obstacle(self, layout: Layout) -> str:
        """Return why a parameter cannot travel as the plan says, or nothing."""
        treatment = self._plan.treatment(layout.names[0])
        try:
            decision = self._decide(treatment, layout)
            if layout.sparse or collectives.runs(decision.compressor, decision.path, layout, self.capabilities):
                return ""
        except ConfigError as error:
            return f"{layout.called}: {error}"
        obstacle = collectives.obstacle(decision.collective, self.capabilities)
        if obstacle:
            return f"{layout.called}: {decision.path} cannot be run: {obstacle}"
        names = ", ".join(map(str, collectives.runnable(decision.compressor, layout, self.capabilities)))
        return f"{layout.called}: {decision.path} cannot carry it over this engine, which offers {names}"

    def parts(self, names: Sequence[str]) -> Sequence[Part]:
        known = set(names)
        named = [tuple(name for name in entry.parameters if name in known) for entry in self._plan.buckets]
        whole = [Part(part, whole=True) for part in named if part]  # others travel by their rows
        matched = [tuple(fnmatch.filter(names, entry.pattern)) for entry in self._plan.patterns]
        return [*whole, *(Part(part) for part in matched if part)]

    def setup(self, step: int, buckets: Sequence[Layout], launch: Launch) -> Sequence[Decision]:
        self._mixed = []
        self._first = step if self._first is None else self._first
        return [self._decision(layout) for layout in buckets]

    def decide(self, step: int) -> Mapping[int, Decision]:
        """Change nothing; say once what travels dense, when buckets are as they stay."""
        as_they_stay = self._first is not None and step >= self._first + RECUT
        if as_they_stay and self._mixed and not self._told and self.rank == 0:
            self._told = True
            layout, treatments = self._mixed[0]
            log.warning(
                "hvd_compress: the plan treats parameters of %d of the buckets that DDP cuts in several ways; these "
                "travel dense, such as that of %s with %d treatments: treat all of them alike, or make buckets smaller "
                "(bucket_cap_mb); this is told once",
                len(self._mixed),
                layout.called,
                treatments,
            )
        return {}

    def _decision(self, layout: Layout) -> Decision:
        treatments: list[Treatment] = []
        for treatment in map(self._plan.treatment, layout.names):
            if treatment not in treatments:
                treatments.append(treatment)
        if len(treatments) == 1:
            return self._decide(treatments[0], layout)
        self._mixed.append((layout, len(treatments)))
        device = compression_device(Request(Cast()), layout.device_type)
        return Decision(Cast(), Path("dense"), device, "the plan treats its parameters in several ways")

    def _decide(self, treatment: Treatment, layout: Layout) -> Decision:
        request = treatment.request()
        lossy = treatment.built().compresses or collectives.in_fp32(treatment.collective)
        kept = layout.dtype == torch.float64 and lossy  # it travels dense
        if treatment.collective == "auto" or kept:
            decided = decide(request, layout, self.world_size, self.capabilities, self._prices)
            return dataclasses.replace(decided, reason=f"planned: {decided.reason}")
        device = compression_device(request, layout.device_type)
        return Decision(treatment.built(), treatment.path, device, "planned")
