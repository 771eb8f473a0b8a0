"""What a program calls: local steps around its own optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from hvd_compress.compression import Compression
from hvd_compress.engines.leave import at_end
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.known import register
from hvd_compress.frontends.local.agreed import Agreed
from hvd_compress.frontends.local.arguments import (
    Deadline,
    Every,
    check_auto,
    check_deadline,
    check_membership,
    check_optimizer,
    check_outer,
    check_rounds,
    checked,
)
from hvd_compress.frontends.local.outer import Make, averaging
from hvd_compress.frontends.local.replicas import Replicas
from hvd_compress.frontends.local.rounds import Rounds
from hvd_compress.frontends.local.schedule import Schedule
from hvd_compress.frontends.local.settled import require_one_model
from hvd_compress.request.request import Request
from hvd_compress.session.notices import tell_one_rank

_taken: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[LocalSteps]] = weakref.WeakKeyDictionary()
"""By optimizers that take local steps what exchanges them."""


def takes_local_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether something exchanges what this optimizer has learned, once in several steps."""
    return optimizer in _taken


def taking_local_steps() -> list[torch.optim.Optimizer]:
    """Return the optimizers that do."""
    return list(_taken)


def local_steps_of(optimizer: torch.optim.Optimizer) -> LocalSteps | None:
    """Return what exchanges what this optimizer has learned, once in several steps; None where nothing does."""
    return _taken[optimizer]() if optimizer in _taken else None


class LocalSteps:
    """Exchanges what an optimizer has learned once in several of its steps, instead of gradients in each.

    The program's loop stays as it is: `optimizer.step()` counts, and exchanges what is due. Each rank trains by itself
    for `every` steps; then the ranks average how far their parameters have moved, compressed, and an outer optimizer
    moves the parameters on which all agree by that mean (McMahan et al. 2017; DiLoCo, Douillard et al. 2023). In
    fragments, each of which has its turn, and landed late, an exchange hides behind the steps that follow (Streaming
    DiLoCo, 2025). Error feedback keeps what a compression loses, for the next round.

        hvd.init()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        local = LocalSteps(optimizer, model, every=8)

    Attributes:
        handle: as hvd_compress.of() returns it; of one rank alone, which exchanges nothing, that of such a rank.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module | Replicas,
        *,
        every: Every = 8,
        compression: Request | None = None,
        outer: Make = averaging,
        start_after: int = 30,
        fragments: int = 1,
        delay: int = 0,
        mix: float | None = None,
        deadline_s: Deadline = None,
    ) -> None:
        """Nothing is communicated before the optimizer's first step. All ranks call it alike.

        Args:
            optimizer: of torch, not distributed; of AdamW, Muon and so on each rank keeps its own state.
            model: whose parameters it trains, the same on all ranks now.
            every: steps in a round; 1 is synchronous training. Or a function of the steps so far, alike on all ranks,
                which is asked before each round. "auto" measures steps, exchanges and how alike ranks learn, estimates
                which number comes to a loss soonest, and says why in `reason`.
            compression: of what is exchanged; int4() by default.
            outer: what moves the parameters by the mean: averaging, diloco, or what makes a torch optimizer of them.
            start_after: steps that are synchronous first, by the same compression.
            fragments: parts of the model, by layers, that are exchanged in turns.
            delay: steps of training that an exchange may take before its result is needed.
            mix: the share of a rank's own parameters in what it goes on with after a delay: 0.5 in Streaming DiLoCo.
                By default it goes on from what all have learned, with all that it has learned meanwhile.
            deadline_s: of ranks that are not equally fast: seconds of training in a round, after which a rank exchanges
                what it has learned in fewer steps, which weighs as much less. "auto" is what `every` steps take on the
                median rank. By default ranks wait for the slowest.

        Raises:
            ConfigError: an argument is out of range, or the model is wrapped in DistributedDataParallel, or sharded.
            UnsupportedError: the optimizer is LBFGS, or the compression has a policy other than auto().
            UsageError: hvd.init() was not called; or the optimizer is distributed, or takes local steps already.
        """
        check_optimizer(optimizer)
        request = checked(Compression.int4() if compression is None else compression)
        check_outer(outer)
        check_rounds(every, start_after, fragments, delay, mix)
        check_auto(request, start_after, fragments)
        check_deadline(deadline_s, model.shard if isinstance(model, Replicas) else "")
        if takes_local_steps(optimizer):
            raise UsageError(
                "this optimizer takes local steps already, and both would exchange: make a new one over the parameters"
            )
        make = partial(Replicas.whole, optimizer, model, request)
        self._replicas = replicas = model if isinstance(model, Replicas) else make()
        self._is_open = self._is_averaged = False
        self._schedule: Schedule | None = None
        self._make_replicas = None if isinstance(model, Replicas) else make
        check_membership(every, replicas.come_and_go)
        if replicas.world_size == 1 and not replicas.come_and_go:
            self.handle = Handle.alone(replicas.parameters, request, replicas.settings)
            tell_one_rank(request.compressor)
            at_end(self, self.handle.session.close)
            return
        self._make_rounds = partial(Rounds, request=request, outer=outer, fragment_count=fragments, mix=mix)
        self._rounds = self._make_rounds(replicas)
        self.handle = self._rounds.handle
        try:
            self.handle.follow(optimizer)
            self._schedule = Schedule(
                self._rounds,
                every=every,
                start_after=start_after,
                delay=delay,
                optimizer=optimizer,
                deadline_s=deadline_s,
            )
        except BaseException:
            self._rounds.close()
            raise
        # They hold this: what a program makes and does not keep exchanges all the same, as long as its optimizer lives.
        self._optimizer = weakref.ref(optimizer)
        self._known = {id(each) for each in _trained(optimizer)}
        _taken[optimizer] = weakref.ref(self)
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)
        self._last = [self._rounds]
        at_end(self, _close, self._last)

    @torch.no_grad()
    def finish(self) -> None:
        """After the last step: ranks agree on all parameters, and buffers are the mean of theirs. All ranks call it.

        A rank that had fewer batches takes part in the rounds of the others until they have come to their last, too. It
        is an error of a rank to call it while others still take synchronous steps. A second call exchanges again, and
        sends what feedback has kept.

        Raises:
            CommunicationError: not all ranks call it.
            ReplicaError: the parameters of some rank are not finite, so ranks do not agree.
        """
        if self._schedule is not None and (self._opens() or self._schedule.begins_with_rounds):
            self._open()
            self._replicas.before_writing()
            self._schedule.finish()
            self._rounds.mean(self._replicas.buffers())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it, the model has the mean of all ranks' parameters and buffers, to be evaluated. Collective.

        They travel uncompressed, each time. The optimizer's steps are refused meanwhile: UsageError. So is this with
        deadline_s, as ranks come to it by other numbers of steps.
        """
        if self._schedule is not None and self._schedule.has_deadline:
            raise UsageError(
                "averaged() wants all ranks after the same step, and with deadline_s each takes as many as it can: "
                "call finish() on every rank, and evaluate after it"
            )
        if not self._opens():
            yield
            return
        assert self._schedule is not None
        self._schedule.rests(is_over=False)
        self._replicas.before_writing()
        tensors = [*(each.detach() for each in self._replicas.parameters.values()), *self._replicas.buffers()]
        own = [each.clone() for each in tensors]
        self._is_averaged = True
        try:
            self._rounds.mean(tensors)
            yield
        finally:
            self._is_averaged = False
            self._replicas.before_writing()
            with torch.no_grad():
                for tensor, kept in zip(tensors, own, strict=True):
                    tensor.copy_(kept)
            self._schedule.rests(is_over=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the round, anchors, outer state, residuals and what is on its way, for which it waits.

        One file a rank. All ranks call it, after the same step.
        """
        return {} if self._schedule is None else self._schedule.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what state_dict() gave, to the bit. Load model and optimizer before.

        every="auto" goes on with the number of steps that it had, and measures anew. With another number of ranks
        parameters are those on which all had agreed.

        Raises ConfigError for a state of other parameters or fragments.
        """
        if state and "rounds" not in state:
            raise ConfigError("this is not the state of LocalSteps: load what its state_dict() returned on this rank")
        if self._schedule is not None and state:
            self._schedule.load_state_dict(state)
        elif state:
            with torch.no_grad():
                for name, parameter in self._replicas.parameters.items():
                    parameter.copy_(state["rounds"]["anchors"][name])

    def leave(self) -> None:
        """Ranks are to meet anew, as hvd_compress.elastic has them: what is on its way lands, or is given up."""
        if self._schedule is not None:
            self._schedule.leave()

    def moment(self) -> dict[str, Any]:
        """Return where this rank stands after leave(): its steps, and the exchanges that have ended."""
        if self._schedule is None:
            return {"steps": 0, "exchanged": 0}
        return self._schedule.moment()

    @property
    def settings(self) -> str:
        """What ranks must have alike, in words."""
        return "" if self._schedule is None else f"{self._schedule.settings}, {self._rounds.agreed.settings}"

    @property
    def agreed(self) -> Agreed | None:
        """What ranks agree on; None in a job of one rank."""
        return None if self._schedule is None else self._rounds.agreed

    def meet(self, moment: Mapping[str, Any], agreed: Mapping[str, Any] | None, *, is_new: bool) -> None:
        """Stand where the rank does that is the furthest, after leave(). Nothing is communicated.

        Args:
            moment, agreed, is_new: as Schedule.meet().
        """
        assert self._schedule is not None
        assert self._make_replicas is not None
        counts, begins = self._schedule.meet(moment, agreed, is_new=is_new)
        self._replicas = self._make_replicas()
        self._rounds = self._last[0] = self._make_rounds(self._replicas)
        self._schedule.renew(self._rounds, counts=counts, forgets=begins)
        self.handle = self._rounds.handle
        if (optimizer := self._optimizer()) is not None:
            self.handle.follow(optimizer)
        self._is_open = False

    def end_round(self) -> None:
        """All ranks have met: they exchange what each has learned, and a round begins. Collective."""
        assert self._schedule is not None
        self._open()
        self._schedule.end_round()

    def __enter__(self) -> LocalSteps:
        """Within `with`, finish() comes at the end, unless an error ends it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raises as finish()."""
        if kind is None:
            self.finish()

    @property
    def reason(self) -> str:
        """Why rounds have as many steps as they have, in words, for every="auto"; empty before it has chosen."""
        return "" if self._schedule is None or self._schedule.auto is None else self._schedule.auto.reason

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A step begins: gradients are there, or a closure computes them in it."""
        if self._is_averaged:
            raise UsageError(
                "optimizer.step() within averaged(), at whose end parameters are as before: train when it is over"
            )
        self._replicas.require_together()
        closure = kwargs.get("closure") if len(args) < 2 else args[1]
        if closure is None:
            self._exchange_gradients(optimizer)
            return None
        evaluated = Evaluated(closure, partial(self._exchange_gradients, optimizer))
        return (args, {**kwargs, "closure": evaluated}) if len(args) < 2 else ((args[0], evaluated, *args[2:]), kwargs)

    def _opens(self) -> bool:
        """Have ranks meet that have only loaded a checkpoint; return whether they have met."""
        if self._schedule is None or not (self._is_open or self._rounds.resumes):
            return False  # one rank, or ranks that agree, as the first step is still to come
        self._open()
        return True

    def _open(self) -> None:
        assert self._schedule is not None
        if not self._is_open:
            self._rounds.open(self._schedule.place)
            require_one_model(self._rounds.anchors, self._rounds.handle.session.gathering)
            self._is_open = True

    def _exchange_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        assert self._schedule is not None
        self._open()
        if any(id(each) not in self._known for each in _trained(optimizer)):
            raise UnsupportedError(
                "the optimizer trains a parameter that was frozen or absent when LocalSteps was made, on which ranks "
                "would never agree: call finish() on every rank, then make an optimizer and LocalSteps anew"
            )
        if self._schedule.before_step() and getattr(optimizer, "grad_scale", None) is not None:
            raise UnsupportedError(
                "a fused optimizer unscales gradients within its step, after synchronous steps exchange them, and "
                "ranks may skip other steps: make it with fused=False, or pass start_after=0 and every=2 or more"
            )

    def _after(self, *_: Any) -> None:
        assert self._schedule is not None
        self._schedule.after_step()


def _close(last: list[Rounds]) -> None:
    last[0].close()


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]


class Evaluated:
    """A closure, and what comes when it was called."""

    def __init__(self, closure: Callable[[], Any], then: Callable[[], None]) -> None:
        self._closure, self._then = closure, then

    def __call__(self) -> Any:
        loss = self._closure()
        self._then()
        return loss


def _handle(trained: Any) -> Handle | None:
    return trained.handle if isinstance(trained, LocalSteps) else None


register(_handle)
