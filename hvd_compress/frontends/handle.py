"""What a program asks of a compressed training, and says to it: one handle for every front end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from hvd_compress.buckets.plan import slots_of
from hvd_compress.buckets.real import gradient_shape
from hvd_compress.checks import check_whole
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.feedback.states import GRADIENT_UNITS, RESULT_SUM
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.frontends.optimizers import check_momentum, learning_rates_of, trains
from hvd_compress.frontends.saving import gathered, with_gathers, without_gathers
from hvd_compress.frontends.stepped import tell_of_steps
from hvd_compress.frontends.unused import UnusedResult
from hvd_compress.policies import DecisionPolicy
from hvd_compress.policies.plan_in_use import plan_in_use
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request, check_devices
from hvd_compress.services.ccr import Ccr
from hvd_compress.session import checkpoint
from hvd_compress.session.ccr import CcrProfiler
from hvd_compress.session.replicas import ReplicaCheck
from hvd_compress.session.report import StepReport
from hvd_compress.session.session import Session
from hvd_compress.settings import DEFAULT_CCR_STEPS, MOST_STEPS, Settings
from hvd_compress.warned import warn_caller


class Handle:
    """What `hvd_compress.of()` returns: all there is to ask of a compressed training, and to say to it.

    Attributes:
        parameters: those whose gradients are exchanged, by name.
        slots: what a plan of buckets needs to know of each.
        devices: where they lie, by the places of `slots`.
        session: what exchanges their buckets.
        unused: notices where nobody has used the result of the last exchange, if a front end says when gradients come.
        front: what the front end alone knows.
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
                or on several devices, and a recording is asked for.
        """
        self.parameters, self._compressors = dict(parameters), request.compressors
        self.front = FrontEnd()
        check_devices(self.parameters, request)
        self.slots, self.devices = slots_of(self.parameters)
        self.session = Session(self.slots, request, settings, connect, devices=self.devices.values(), **options)
        self.session.services.replicas = ReplicaCheck(self.parameters, settings.check_every)
        tell_of_steps(self.session.services.replicas)
        self.unused = UnusedResult(self.parameters, self.session.drop_step)
        tell_of_steps(self.unused)
        self.session.services.ccr.profiler = CcrProfiler(self.parameters)
        self.session.services.recorders = [each.recorder(self, request, settings) for each in settings.recordings]

    @classmethod
    def alone(cls, parameters: Mapping[str, torch.Tensor], request: Request, settings: Settings) -> Handle:
        """Return one of a rank that exchanges nothing, which answers every question. Its maker closes the session."""
        handle = cls(parameters, request, settings, _connect_to_nobody)
        handle.front = FrontEnd(is_alone=True)
        return handle

    @property
    def last_step(self) -> StepReport | None:
        """A report of the last exchange; None before the first. Its bytes are those of what is compressed."""
        return self.session.last_step

    @property
    def decisions(self) -> Mapping[tuple[str, ...], Decision]:
        """How each bucket travels in the next step, by the names of its parameters; empty before the first."""
        return {self.front.named(names): decision for names, decision in self.session.buckets.decisions.items()}

    @property
    def controller(self) -> DecisionPolicy | None:
        """What chooses while training, with its `history`; None where nothing is to choose."""
        return self.session.steering.controller

    @property
    def ccr(self) -> Ccr | None:
        """The communication-to-computation ratio that was profiled last; None before."""
        return self.session.services.ccr.found

    def metrics(self) -> dict[str, float]:
        """Return the figures of the last step, for any logger; empty before the first. Nothing is communicated.

        "sent_bytes" and "dense_bytes" (mean over ranks, and the same without compression: of a ring allreduce, or of a
        reduce-scatter where FSDP's ranks own shards), "ratio" of the two, "wait_s", "compress_s", "communicate_s",
        "decompress_s" (`StepReport`), "step", "finite" (1 or 0) and "nonfinite_steps"; "relative_error",
        ||corrected - transmitted|| / ||corrected|| on this rank, of compressions with error feedback: it takes two or
        three passes over gradients, and is measured in the step after each call, so the first call has none; and the
        share of elements that travelled in each way, such as "decision/int4 alltoall-allgather".
        """
        self.look()
        return self.session.reporting.metrics()

    def look(self) -> None:
        """Have the relative error of the coming step measured, between two steps. Nothing is communicated."""
        self.session.reporting.look(self.session.buckets.every)

    def save_plan(self, path: str | Path) -> None:
        """Write how buckets travel now to a file, so that Compression.plan(path) lets another run do the same.

        Nothing is communicated, and all ranks would write the same: call it on one.

        Raises:
            UsageError: before the first exchange, while something is still tried, on a rank that exchanges nothing, or
                where buckets are skipped in the coming step, as with Compression.covap(), or the compressor is the
                user's own.
            UnsupportedError: under FSDP2, whose buckets no plan names.
            PlanError: the file cannot be written.
        """
        self._require("save_plan")
        if self.front.is_alone:
            raise UsageError("save_plan() on a rank that exchanges nothing: there is no plan of it")
        decisions, layouts = self.session.buckets.decisions, self.session.buckets.layouts
        if not layouts:
            raise UsageError("nothing is in use before the first step: call save_plan() after it")
        plan_in_use(decisions, layouts, self.session.engine.world_size).write(Path(path))
        for lacks in dict.fromkeys(decision.plan_lacks for decision in decisions.values()):
            if lacks:
                warn_caller(lacks)

    def profile_ccr(self, steps: int = DEFAULT_CCR_STEPS) -> None:
        """Have the communication-to-computation ratio profiled by the coming steps, for `ccr`. All ranks call it.

        In these steps exchanges begin when the backward pass is over. Where the compression tries something, they are
        the first ones in which it does not.

        Raises ConfigError where `steps` is no number of steps, UnsupportedError where the model has no one clock,
        and under FSDP2.
        """
        self._require("profile_ccr")
        if obstacle := self.session.services.ccr.obstacle:
            raise UnsupportedError(obstacle)
        check_whole("steps", steps, 1, MOST_STEPS)
        self.session.services.ccr.ask(steps)

    def _require(self, method: str) -> None:
        if method in self.front.refuses:
            raise UnsupportedError(f"{method}(): {self.front.refuses[method]}")

    def end_epoch(self) -> None:
        """An epoch is over, for Compression.accordion() without epoch_steps; for others it does nothing.

        All ranks call it, between two steps, after the step of a learning-rate scheduler: the rates of the coming epoch
        count.

        Raises UsageError where gradients are on their way.
        """
        self.front.require_rest("end_epoch()")
        self.session.end_epoch()

    def drop_step(self) -> None:
        """Forget what the last exchange has left in residuals and compressors' states: its result is not used.

        Call it where a step is left out, on every rank, before the next backward pass. Nothing is communicated. It
        reaches one exchange back. In a program that otherwise steps by each result it is seen without this call, where
        gradients are None or zero when the next ones come, and no parameter has moved until those leave.

        Raises UsageError while gradients are being exchanged.
        """
        self.front.require_rest("drop_step()")
        self.session.drop_step()

    def gather_figures(self, figures: Sequence[float]) -> list[list[float]]:
        """Return the figures of all ranks, in their order: for what all are to decide alike. All ranks bring as many.

        Raises UsageError before the first step, and where gradients are on their way.
        """
        if self.front.is_alone:
            return [[float(each) for each in figures]]
        self.front.require_rest("gather_figures()")
        return self.session.gathering.figures(figures)

    def follow_learning_rate(self, optimizer: torch.optim.Optimizer) -> None:
        """Let Compression.accordion() see the learning rates of the optimizer that trains this model, on every rank.

        That of hvd_compress.torch is followed without this.

        Raises ConfigError for what is no optimizer, or that of another model; or where it has a momentum of its own and
        the compression has one, too, as momentum(), demo() and dgc().
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"a {type(optimizer).__name__} has no learning rates: pass the optimizer, not its scheduler"
            )
        if self.front.is_alone and not self.parameters:
            return
        trained = self._all_parameters.values() if self.front.trained is None else self.front.trained()
        if not trains(optimizer, trained):
            raise ConfigError(
                f"this {type(optimizer).__name__} has no parameter of this model: pass that which trains it"
            )
        self.follow(optimizer)

    def follow(self, *optimizers: torch.optim.Optimizer) -> None:
        """Let the policy see the learning rates of those that train these parameters.

        Raises ConfigError where one has a momentum that the compression has, too.
        """
        for optimizer in optimizers:
            for compressor in self._compressors:
                check_momentum(compressor, optimizer)
        self.session.steering.learning_rates = learning_rates_of(optimizers)

    def follow_loss_scale(self, scaler: Any) -> None:
        """Keep residuals in the units of a torch.amp.GradScaler: when its scale changes, they are rescaled with it.

        Checkpoints hold the scale, so it does not matter whether this or the scaler is loaded first.

        Raises UnsupportedError for local steps.
        """
        self._require("follow_loss_scale")
        self.session.loss_scale.follow(scaler)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's compression remembers: residuals and compressors' states, by parameter name.

        Of FSDP2 with parameters=differences(...) also this rank's part of the copies of gathered parameters.
        Where a reduce-scatter of FSDP2 has feedback, by module. Nothing is communicated. Residuals differ from rank to
        rank: save one file a rank to keep them all.
        """
        if not self.session.is_within_step:
            self.session.loss_scale.update()
        state = checkpoint.save(self.session, self.front.rank, self.front.world_size, self.front.shard)
        gathers = self.front.gathers()
        return state if gathers is None else with_gathers(state, gathers.saved())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what state_dict() gave. Nothing is communicated.

        Residuals come back only on the rank that saved them, in a job of the same size and mesh; elsewhere they start
        from zero, with a warning: another rank's residual would be applied twice.

        Raises ConfigError where it is not such a state, or of unknown parameters or other lengths; UsageError while
        gradients are being exchanged.
        """
        self.front.require_rest("load_state_dict()")
        if self.front.is_alone and not self.parameters:
            return  # outside of a process set there is nothing to remember
        numels = {name: math.prod(gradient_shape(each)) for name, each in self._all_parameters.items()}
        front, (state, copies), gathers = self.front, without_gathers(state), self.front.gathers()
        own = copies.get(checkpoint.name_of(front.rank, front.world_size) + front.shard, {})
        if gathers is not None:
            gathers.require_fits(own)
        checkpoint.load(self.session, state, numels, front.rank, front.world_size, front.shard)
        if gathers is not None:
            gathers.load(own)

    def gathered_state_dict(self) -> dict[str, Any]:
        """Return on rank 0 what the compression of all ranks remembers, for what saves one file. Collective.

        Rank 0 of those that exchange gets as many residuals as there are ranks, 4 bytes an element each; the others get
        their own, as state_dict() returns it.

        Raises:
            CommunicationError: not all ranks call it within HVD_COMPRESS_TIMEOUT_S.
            UsageError: while gradients are being exchanged; under Horovod before the first step.
            UnsupportedError: the model is sharded over a part of the ranks.
        """
        self.front.require_rest("gathered_state_dict()")
        self._require("gathered_state_dict")
        own = self.state_dict()
        return own if self.front.is_alone else gathered(own, self.front, self.session)

    def load_gathered_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what gathered_state_dict() gave on rank 0, on every rank the same. Nothing is communicated.

        Each rank takes its own residual. In a job of another size each begins with the mean over the ranks that saved,
        so that the average of all gradients gets what they had not sent.

        Raises ConfigError as load_state_dict(), and where the state is not that of all ranks.
        """
        checkpoint.require_all_ranks(state)
        self.load_state_dict(state)

    def debts(self, states: Mapping[str, Mapping[str, torch.Tensor]]) -> list[str]:
        """Return the kinds of compressors' states that are, like residuals, what this rank alone has not sent yet.

        By elements, so that another rank can take them over.
        """
        alike = {each for compressor in self._compressors for each in (*compressor.alike, RESULT_SUM)}
        owed = [kind for kind in states if kind.startswith(GRADIENT_UNITS) and kind not in alike]
        return [kind for kind in owed if all(each.dim() for each in states[kind].values())]

    @property
    def _all_parameters(self) -> Mapping[str, torch.Tensor]:
        return self.parameters if self.front.parameters is None else self.front.parameters()


def _connect_to_nobody() -> NoReturn:
    raise AssertionError("on a rank that is alone nothing is exchanged")
