"""The optimizer that reduces gradients before it applies them: where a gradient enters and leaves."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hvd_compress.checks import check_whole
from hvd_compress.compressors import Cast
from hvd_compress.engines.leave import at_end
from hvd_compress.errors import UsageError
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.frontends.gradient_hooks import GradientHooks, Handle
from hvd_compress.frontends.handle import Handle as SessionHandle
from hvd_compress.frontends.known import moved
from hvd_compress.frontends.known import register as register_front_end
from hvd_compress.frontends.optimizer import refusals
from hvd_compress.frontends.optimizer.named_parameters import trainable
from hvd_compress.frontends.optimizer.reducer import Reducer
from hvd_compress.frontends.optimizer.watchers import register, replaced
from hvd_compress.frontends.optimizers import load_in_place
from hvd_compress.request.request import Request
from hvd_compress.services.base import Rollouts
from hvd_compress.session import checkpoint
from hvd_compress.settings import Settings
from hvd_compress.warned import warn_caller

STATE_KEY = "hvd_compress"


class ReducingOptimizer(torch.optim.Optimizer):
    """Mixed into the class of the user's optimizer by `wrap`. Behaves as Horovod's distributed optimizer does.

    What is asked of its compression, hvd_compress.of() has.

    Attributes:
        handle: what that returns.
    """

    handle: SessionHandle

    _wrapped: torch.optim.Optimizer
    _reducer: Reducer | None
    _names: dict[torch.Tensor, str]
    _delay: dict[torch.Tensor, int]

    def _attach(
        self, names: dict[torch.Tensor, str], reducer: Reducer | None, passes: int, rank: int, size: int
    ) -> None:
        """Begin to watch gradients. Without a reducer (this rank is outside the process set) steps stay local."""
        self._names, self._reducer = names, reducer
        self.backward_passes_per_step = passes
        watched = trainable(names)
        self._delay = dict.fromkeys(watched, passes)
        self._should_synchronize = True
        self._dirty = False
        self._synchronized = False  # by the program, and step() has not applied the results yet
        self._hooking = threading.RLock()
        self._rolls_out = False
        self._retired = False
        self._detach: Callable[[], object] = lambda: None
        register(self, names)
        if reducer is None:
            settings = replace(Settings.from_environment(), recordings=())
            self.handle = SessionHandle.alone({}, Request(Cast()), settings)
            self._detach = at_end(self, self.handle.session.close)
            return
        me = weakref.ref(self)  # a hook must not keep the optimizer alive: its threads end with it
        parameters = {name: parameter for parameter, name in names.items()}
        self.handle = reducer.handle
        self.handle.front = FrontEnd(rank, size, parameters=lambda: parameters, require_rest=partial(_require_rest, me))
        self.handle.follow(self)
        tell = partial(partial, _tell, me)
        self._hooks = GradientHooks(
            watched, tell(ReducingOptimizer._gradient_comes), tell(ReducingOptimizer._gradient_ready)
        )
        self._detach = at_end(self, _detach, self._hooks.handles, reducer)

    @property
    def is_retired(self) -> bool:
        """Whether another optimizer exchanges the gradients of these parameters now."""
        return self._retired

    def require_idle(self) -> None:
        """Raise UsageError where gradients are on their way, unless an error has ended all exchanges."""
        if self._reducer is None or not self._reducer.failed:
            self._require_rest("wrapping the parameters of a distributed optimizer again")

    def retire(self) -> None:
        """Another optimizer exchanges the gradients of these parameters now. The state can still be read."""
        self._retired = True
        self._detach()

    def renew(self, reducer: Reducer, rank: int, size: int, *, counts: bool) -> None:
        """Exchange gradients over other ranks from now on: after a step that has failed, or between two steps.

        What compression remembers on this rank stays, so that the sum over the ranks that are left is what it was.

        Args:
            reducer: over the ranks that have met now, of whom this is `rank` of `size`.
            counts: whether the failed step has ended on another rank, whose results this one takes over.
        """
        session, scaler = self.handle.session, self.handle.session.loss_scale.scaler
        self._detach()  # its threads end
        if counts and not self._synchronized:
            session.keep_step()
        elif self._synchronized and not counts:  # exchanged, and applied on no rank
            session.drop_step()
        saved = checkpoint.save(session, rank, size)
        for parameter in self._names:
            parameter.grad = None  # it may never arrive
        self._attach(self._names, reducer, self.backward_passes_per_step, rank, size)
        if scaler is not None:
            self.handle.follow_loss_scale(scaler)
        self._load_own(saved)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Not supported: it holds threads, hooks and connections."""
        raise refusals.copied()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are summed before gradients are exchanged; not allowed in between."""
        self._require_rest("set_backward_passes_per_step()")
        self.backward_passes_per_step = check_whole("backward_passes_per_step", passes, 1)
        self._delay = dict.fromkeys(self._delay, passes)

    @eagerly
    def synchronize(self) -> None:
        """Exchange all gradients; `parameter.grad` holds the reduced ones afterwards.

        For clipping and the like: synchronize(), change gradients, then step() within skip_synchronize(). Between
        backward() and synchronize() a gradient cannot be used: it is exchanged (see buckets/under_way.py).

        Raises:
            ConfigError: in the first step, if ranks differ in settings or parameters.
            UnsupportedError: a parameter is trained that was not when the optimizer was wrapped.
            UsageError: another optimizer was wrapped over these parameters later; a gradient was dropped or replaced
                after backward(), while it was exchanged; or what compression remembers would be added a second time.
            CommunicationError: a collective failed or a rank did not answer; names rank, bucket, step and collective.
        """
        if self._retired:
            raise replaced("synchronize()")
        if self._reducer is not None:
            try:
                self._check_again()
                self._check_parameters()
            except BaseException as error:
                self._reducer.fail(error)  # other ranks may wait for this one: it must be able to end
                raise
            self._reducer.finish()
        self._delay = dict.fromkeys(self._delay, self.backward_passes_per_step)
        self._dirty, self._synchronized = False, True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() applies the gradients as they are."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange gradients unless skip_synchronize() says otherwise, then take the optimizer's own step.

        A closure is evaluated once, before the exchange; optimizers that evaluate it several times (LBFGS) cannot be
        distributed like this.

        Raises:
            UsageError: a closure within skip_synchronize(): the gradients that it computes would not be exchanged. Or
                another optimizer was wrapped over these parameters later.
        """
        if self._retired:
            raise replaced("step()")
        loss = None
        if closure is not None and self._reducer is not None:
            if not self._should_synchronize:
                raise UsageError("step(closure) within skip_synchronize(): call the closure before synchronize()")
            with torch.enable_grad():
                loss, closure = closure(), None
        if self._should_synchronize:
            self.synchronize()
        result = super().step(closure)
        self._synchronized = False
        self._wrapped._opt_called = True  # type: ignore[attr-defined]  # a scheduler made before wrapping asks for it
        return result if loss is None else loss

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it, and run the step hooks a second time

    def rollout(self, step: Callable[[], object], model: torch.nn.Module, data: Any = (), *, steps: int = 10) -> bool:
        """For Compression.flexible(gain="rollout"): call it on every rank at the end of each iteration.

        Where there is a reason to measure gains (at first, and when the gain has moved), this trains `steps`
        steps with each candidate ratio and takes them back: parameters, gradients, buffers, the optimizer's state,
        residuals, generators of random numbers and `data` are as before, to the bit. Else, and for any other
        compression, it does nothing. Costs (candidates * steps) training steps and the memory of a checkpoint.

        Args:
            step: trains one step, as the loop does: zero_grad(), forward, backward, step() of this optimizer.
            model: what `step` trains.
            data: what else `step` changes: the position in the data, schedulers, a GradScaler. One object, or a
                sequence of objects, with state_dict() and load_state_dict(), or get_state() and set_state().
            steps: how many steps each candidate ratio gets; 10 in the paper.

        Returns:
            Whether there was a rollout. The same on all ranks.

        Raises:
            ConfigError: an argument is not what it should be, where there is a rollout.
            UsageError: gradients are being exchanged, or `step` takes none or several steps.
        """
        if self._retired:
            raise replaced("rollout()")
        self._require_rest("rollout()")
        self._rolls_out = True
        if (rollouts := self._rollouts) is None:
            return False
        assert self._reducer is not None
        rollouts.roll_out(self._reducer.session, self, step, model, data, steps)
        return True

    @property
    def _rollouts(self) -> Rollouts | None:
        """What the policy wants of steps that are taken back, once one has been finite."""
        session = self._reducer.session if self._reducer is not None else None
        if session is None or session.policy is None or session.last_step is None or not session.last_step.finite:
            return None
        found = next((each for each in session.policy.services if isinstance(each, Rollouts)), None)
        return found if found is not None and found.wanted else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; not allowed while they are being exchanged."""
        self._require_rest("zero_grad()", refusals.OTHER_LOSS)
        self._synchronized = False
        super().zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and under "hvd_compress" what compression remembers on this rank, by parameter name.

        It differs from rank to rank: save one file a rank to keep it all. The first parameter group has it, too, so
        that an optimizer that is not wrapped yet takes it along when it loads this.
        """
        state = super().state_dict()
        if self._reducer is not None:
            state[STATE_KEY] = self.handle.state_dict()
            state["param_groups"][0][STATE_KEY] = state[STATE_KEY]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what state_dict() gave, or the state of an optimizer without compression.

        Parameter groups are changed in place: a learning-rate scheduler that was made before goes on turning them.

        Residuals come back only on the rank that saved them, in a job of the same size; elsewhere they start from zero,
        with a warning: another rank's residual would be applied twice. The step counter is taken over before the first
        exchange, and only counts after it, because all ranks must agree on it.

        Raises:
            ConfigError: residuals of unknown parameters or other lengths.
            UsageError: gradients are being exchanged.
        """
        self._require_rest("load_state_dict()")
        theirs = {key: value for key, value in state_dict.items() if key != STATE_KEY}
        load_in_place(self, partial(super().load_state_dict, theirs))
        self._delay = dict.fromkeys(self._delay, self.backward_passes_per_step)
        self._should_synchronize = True
        carried = self._take_carried()
        self._load_own(state_dict.get(STATE_KEY, carried))

    def _take_carried(self) -> Any:
        """Return what compression remembered where a state was loaded, and None where it was of none."""
        return self.param_groups[0].pop(STATE_KEY, None)

    def _load_own(self, own: Any) -> None:
        if self._reducer is not None and own is not None:
            self.handle.load_state_dict(own)

    def __getattr__(self, name: str) -> Any:
        """Say where what earlier versions had is now."""
        if inherited := getattr(super(), "__getattr__", None):
            return inherited(name)
        kind = type(self).__name__
        raise AttributeError(moved(f"{kind}.{name}", name) or f"{kind!r} object has no attribute {name!r}")

    def _require_rest(self, call: str, hint: str = "") -> None:
        if self._dirty and self._reducer is not None:
            self._reducer.session.refuse_after_failure()
            raise refusals.exchanging(call, hint)

    def _check_again(self) -> None:
        """Results that are exchanged again are averaged again, which changes nothing; but what compression remembers is
        added to them, which fits neither results that were unscaled nor those that were clipped."""
        assert self._reducer is not None
        if self._dirty or not self._reducer.holds_results():
            return
        if self._synchronized and self._reducer.session.request.compressor.error_feedback:
            raise refusals.exchanged_again()
        warn_caller(
            "gradients are exchanged again although no backward pass has run since the last exchange; "
            "call step() once for each backward pass, and after synchronize() within skip_synchronize()"
        )

    def _gradient_comes(self, parameter: torch.Tensor) -> None:
        if self._delay[parameter] <= 0:
            raise refusals.computed_again(self._names[parameter], self.backward_passes_per_step)
        if self._reducer is not None:
            self._reducer.comes()

    def _gradient_ready(self, parameter: torch.Tensor) -> None:
        if not self._dirty:
            self._check_parameters()  # while nothing of this step is on its way
            self._require_rollout()
        self._dirty, self._synchronized = True, False
        self._delay[parameter] -= 1
        if self._delay[parameter] == 0:
            assert self._reducer is not None
            self._reducer.ready(self._names[parameter])

    def _require_rollout(self) -> None:
        """Without this, a rollout that was asked for would never come, and nothing be chosen."""
        if not self._rolls_out and (rollouts := self._rollouts) is not None:
            raise UsageError(rollouts.how)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not supported: ranks agree on the parameters once."""
        raise refusals.parameters_added()

    def _check_parameters(self) -> None:
        refusals.require_exchanged(self.param_groups, self._delay, self._names, type(self).__name__)


def wrap(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    reducer: Reducer | None,
    passes: int,
    rank: int,
    size: int,
) -> ReducingOptimizer:
    """Return an optimizer of a class derived from that of `optimizer`, which shares its parameter groups and state.

    Args:
        names: of all its parameters; those that are trainable() now are exchanged by `reducer`.

    Raises:
        ConfigError: `optimizer` has loaded what compression remembered of other parameters.
    """
    cls: Any = type(type(optimizer).__name__, (ReducingOptimizer, type(optimizer)), {})
    wrapped: ReducingOptimizer = cls.__new__(cls)
    # A learning-rate scheduler made before wraps `step` of that one object; the class's own is what counts here.
    wrapped.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    wrapped._wrapped = optimizer
    wrapped._attach(names, reducer, passes, rank, size)
    wrapped._load_own(wrapped._take_carried())
    return wrapped


def _tell(
    me: weakref.ref[ReducingOptimizer],
    what: Callable[[ReducingOptimizer, torch.Tensor], None],
    parameter: torch.Tensor,
) -> None:
    optimizer = me()
    if optimizer is None:
        return
    try:
        with optimizer._hooking:  # autograd has a thread for each device, and all of them call hooks
            what(optimizer, parameter)
    except BaseException as error:
        assert optimizer._reducer is not None
        if optimizer._dirty:  # else nothing of this step was launched, and it can be begun again
            optimizer._reducer.fail(error)  # other ranks may wait for this one: it must be able to end
        raise


def _require_rest(me: weakref.ref[ReducingOptimizer], call: str) -> None:
    if (optimizer := me()) is not None:
        optimizer._require_rest(call)


def known_handle(trained: Any) -> SessionHandle | None:
    """Return what is asked of a distributed optimizer; None for anything else."""
    return trained.handle if isinstance(trained, ReducingOptimizer) else None


register_front_end(known_handle)


def _detach(handles: Iterable[Handle], reducer: Reducer) -> None:
    for handle in handles:
        handle.remove()
    reducer.close()
