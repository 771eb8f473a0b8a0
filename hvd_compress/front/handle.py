"""What every front end has of its session: how it is made, and what programs ask of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hvd_compress.buckets.plan import slots_of
from hvd_compress.buckets.real import gradient_shape
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.front.optimizers import check_momentum, learning_rates_of
from hvd_compress.front.stepped import tell_of_steps
from hvd_compress.front.unused import UnusedResult
from hvd_compress.policies import DecisionPolicy
from hvd_compress.policies.ccr import Ccr
from hvd_compress.profiler.ccr import CcrProfiler
from hvd_compress.profiler.job import JobProfile, release_profile
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request, check_devices
from hvd_compress.session import checkpoint
from hvd_compress.session.replicas import ReplicaCheck
from hvd_compress.session.report import StepReport
from hvd_compress.session.session import Session
from hvd_compress.settings import DEFAULT_CCR_STEPS, MOST_STEPS, Settings


class Handle:
    """A session of parameters, with what watches over them.

    Attributes:
        parameters: those whose gradients are exchanged, by name.
        slots: what a plan of buckets needs to know of each.
        devices: where they lie, by the places of `slots`.
        session: what exchanges their buckets.
        unused: notices where nobody has used the result of the last exchange, if a front end says when gradients come.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        request: Request,
        settings: Settings,
        connect: Callable[[], Engine],
        **options: Any,
    ) -> None:
        """Nothing is communicated yet.

        Args:
            parameters: by name, in an order that is the same on all ranks.
            request: what the user asked for.
            connect: creates the engine; called once, in the communication thread, in the first step.
            options: of the session.

        Raises:
            ConfigError: parameters are not where the request wants them to be.
            UnsupportedError: they are on a GPU, and there are no kernels for it; or of a dtype that nothing exchanges;
                or on several devices, and a profile is asked for.
        """
        self.parameters, self._compressors = dict(parameters), request.compressors
        check_devices(self.parameters, request)
        self.slots, self.devices = slots_of(self.parameters)
        self.session = Session(self.slots, request, settings, connect, devices=self.devices.values(), **options)
        self.session.replicas = ReplicaCheck(self.parameters, settings.check_every)
        tell_of_steps(self.session.replicas)
        self.unused = UnusedResult(self.parameters, self.session.drop_step)
        tell_of_steps(self.unused)
        self.session.ccr.profiler = CcrProfiler(self.parameters)
        if settings.ccr is not None:
            self._require_profilable()
            self.session.ccr.give_up = release_profile
        if settings.profile is not None:
            self.session.profiling = JobProfile(self.parameters, settings.profile, request, settings.calibration_s)

    @property
    def last_step(self) -> StepReport | None:
        """A report of the last exchange; None before the first."""
        return self.session.last_step

    @property
    def decisions(self) -> Mapping[tuple[str, ...], Decision]:
        """How each bucket travels in the next step, by the names of its parameters; empty before the first."""
        return self.session.decisions

    @property
    def controller(self) -> DecisionPolicy | None:
        """What chooses while training, with its `history`; None where nothing is to choose."""
        return self.session.controller

    @property
    def ccr(self) -> Ccr | None:
        """The communication-to-computation ratio that was profiled last; None before."""
        return self.session.ccr.found

    def profile_ccr(self, steps: int = DEFAULT_CCR_STEPS) -> None:
        """Have the communication-to-computation ratio profiled by the coming steps. All ranks call it.

        Raises ConfigError where `steps` is no number of steps, UnsupportedError where the model has no one clock.
        """
        self._require_profilable()
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
            raise ConfigError(f"steps = {steps!r} is not a number of steps, 1 to {MOST_STEPS:,}")
        self.session.ccr.ask(steps)

    def _require_profilable(self) -> None:
        if obstacle := self.session.ccr.obstacle:
            raise UnsupportedError(obstacle)

    def save_plan(self, path: str | Path) -> None:
        """Write how buckets travel now to a file, as Session.save_plan()."""
        self.session.save_plan(path)

    def follow(self, *optimizers: torch.optim.Optimizer) -> None:
        """Let the policy see the learning rates of those that train these parameters.

        Raises ConfigError where one has a momentum that the compression has, too.
        """
        for optimizer in optimizers:
            for compressor in self._compressors:
                check_momentum(compressor, optimizer)
        self.session.learning_rates = learning_rates_of(optimizers)

    def follow_loss_scale(self, scaler: Any) -> None:
        """Keep residuals in the units of a torch.amp.GradScaler."""
        self.session.loss_scale.follow(scaler)

    def state_dict(self, rank: int, world_size: int, shard: str = "") -> dict[str, Any]:
        """Return what compression remembers on this rank, as checkpoint.save()."""
        return checkpoint.save(self.session, rank, world_size, shard)

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        parameters: Mapping[str, torch.Tensor],
        rank: int,
        world_size: int,
        shard: str = "",
    ) -> None:
        """Load what state_dict() gave, as checkpoint.load(). `parameters`: all that there are, frozen ones too."""
        numels = {name: math.prod(gradient_shape(parameter)) for name, parameter in parameters.items()}
        checkpoint.load(self.session, state, numels, rank, world_size, shard)
