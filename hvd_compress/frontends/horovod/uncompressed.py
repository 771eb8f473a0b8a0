"""The distributed optimizer for Horovod's own compressions (none, fp16), on this package's runtime.

Each gradient is reduced by its name as soon as it is there, so that ranks may compute them in different orders.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from hvd_compress.checks import check_whole
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.gradient_hooks import GradientHooks
from hvd_compress.frontends.horovod.runtime_selection import hvd
from hvd_compress.frontends.optimizer import refusals
from hvd_compress.frontends.optimizer.named_parameters import trainable
from hvd_compress.frontends.optimizer.watchers import register, replaced
from hvd_compress.runtime.handles import drop
from hvd_compress.warned import warn_caller

_Group = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class GradientAllreduce:
    """How gradients are reduced; as the arguments of DistributedOptimizer().

    Attributes:
        compression: has compress() and decompress() of one tensor.
        groups: names of parameters that are reduced together, or how many groups there are; 0 for none.
    """

    compression: Any
    op: Any
    predivide_factor: float
    groups: tuple[tuple[str, ...], ...] | int
    sparse_as_dense: bool
    process_set: Any

    def begin(self, gradients: Sequence[torch.Tensor], name: str) -> tuple[Any, Sequence[Any]]:
        """Return what waits for the reduced gradients, several as a group, and what decompress() needs of each."""
        if len(gradients) == 1 and gradients[0].is_sparse and not self.sparse_as_dense:
            handle = hvd.sparse_allreduce_async(gradients[0], name=name, op=self.op, process_set=self.process_set)
            return handle, [None]
        dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
        sent, contexts = zip(*map(self.compression.compress, dense), strict=True)
        handle = hvd.grouped_allreduce_async_(
            list(sent),
            name=name,
            op=self.op,
            prescale_factor=1 / self.predivide_factor,
            postscale_factor=self.predivide_factor,
            process_set=self.process_set,
        )
        return handle, contexts

    def end(self, handle: Any, contexts: Sequence[Any]) -> list[torch.Tensor]:
        """Return the reduced gradients."""
        found = hvd.synchronize(handle)
        if isinstance(found, torch.Tensor):  # sparse
            return [found]
        return [self.compression.decompress(*each) for each in zip(found, contexts, strict=True)]


class UncompressedOptimizer(torch.optim.Optimizer):
    """Mixed into the class of the user's optimizer by `wrap`. Behaves as Horovod's distributed optimizer does."""

    _wrapped: torch.optim.Optimizer
    _allreduce: GradientAllreduce
    _parameter_names: dict[torch.Tensor, str]
    _delay: dict[torch.Tensor, int]

    def _attach(self, names: dict[torch.Tensor, str], allreduce: GradientAllreduce, passes: int) -> None:
        self._parameter_names, self._allreduce = names, allreduce
        self.backward_passes_per_step = passes
        watched = trainable(names)
        self._delay = dict.fromkeys(watched, passes)
        self._begun: dict[int, tuple[Any, Sequence[Any]]] = {}  # by the number of a group
        self._should_synchronize, self._synchronized, self._dirty, self._retired = True, False, False, False
        self._hooking = threading.RLock()  # autograd has a thread for each device
        self._is_distributed = allreduce.process_set.included() and hvd.size() > 1
        self._groups: list[_Group] = []
        if not self._is_distributed:
            return
        if isinstance(self, torch.optim.LBFGS):
            raise refusals.several_gradients()
        if allreduce.op == hvd.Adasum and (allreduce.process_set.process_set_id or hvd.size() & (hvd.size() - 1)):
            raise UnsupportedError("op=Adasum takes all ranks of the job, a power of two: take hvd.Average")
        self._groups = _grouped(allreduce, watched)
        self._group_of = {parameter: number for number, group in enumerate(self._groups) for parameter in group}
        me = weakref.ref(self)  # a hook must not keep the optimizer alive
        comes = partial(_tell, me, UncompressedOptimizer._comes)
        self._hooks = GradientHooks(watched, comes, partial(_tell, me, UncompressedOptimizer._ready))
        register(self, names)

    @property
    def is_retired(self) -> bool:
        """Whether another optimizer exchanges the gradients of these parameters now."""
        return self._retired

    def require_idle(self) -> None:
        """Raise UsageError where gradients are on their way."""
        self._require_idle("wrapping the parameters of a distributed optimizer again")

    def retire(self) -> None:
        """Another optimizer exchanges the gradients of these parameters now."""
        self._retired = True
        for handle in self._hooks.handles:
            handle.remove()

    @property
    def is_by_adasum(self) -> bool:
        """Whether what steps change is combined."""
        return bool(self._allreduce.op == hvd.Adasum)

    def renew(self) -> None:
        """Exchange gradients over the ranks that have met now."""
        if self._is_distributed:
            self.retire()
        for parameter in self._parameter_names:
            parameter.grad = None  # it may have been summed on some ranks
        self._attach(self._parameter_names, self._allreduce, self.backward_passes_per_step)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Not supported: it holds hooks."""
        raise refusals.copied()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are summed before gradients are exchanged."""
        self.backward_passes_per_step = check_whole("backward_passes_per_step", passes, 1)
        self._delay = dict.fromkeys(self._delay, passes)

    @eagerly
    def synchronize(self) -> None:
        """Exchange all gradients; `parameter.grad` holds the reduced ones afterwards. A missing one counts as zeros.

        Raises:
            ConfigError: ranks have other gradients.
            CommunicationError: a rank did not come, has left or is gone.
            UsageError: another optimizer was wrapped over these parameters later.
        """
        if self._retired:
            raise replaced("synchronize()")
        if self._is_distributed:
            refusals.require_exchanged(self.param_groups, self._delay, self._parameter_names, type(self).__name__)
        try:
            if self._is_distributed and self._allreduce.op != hvd.Adasum:
                self._exchange_all()
        finally:
            self._reset()
        self._synchronized = True

    def _exchange_all(self) -> None:
        for number in range(len(self._groups)):
            if number not in self._begun:
                self._begin(number)
        while self._begun:  # what an error leaves in it is waited for by nobody
            number = next(iter(self._begun))
            reduced = self._allreduce.end(*self._begun.pop(number))
            for parameter, each in zip(self._groups[number], reduced, strict=True):
                _put(parameter, each)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step() applies the gradients as they are."""
        if self._allreduce.op == hvd.Adasum:
            raise UnsupportedError("op=Adasum combines what steps change: its exchange cannot be left out of step()")
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange gradients unless skip_synchronize() says otherwise, then take the optimizer's own step.

        A closure is evaluated once, before the exchange. By Adasum the step comes first, and what it changes is
        combined.
        """
        if self._retired:
            raise replaced("step()")
        loss = None
        if closure is not None and self._is_distributed:
            if not self._should_synchronize:
                raise UsageError("step(closure) within skip_synchronize(): call the closure before synchronize()")
            with torch.enable_grad():
                loss, closure = closure(), None
        if self._should_synchronize:
            if self._synchronized:
                warn_caller(
                    "optimizer.step() called without optimizer.skip_synchronize() after synchronize(): gradients are "
                    "exchanged again"
                )
            self.synchronize()
        self._synchronized = False
        if self._is_distributed and self._allreduce.op == hvd.Adasum:
            result = self._step_by_adasum()
        else:
            result = super().step(closure)
        self._wrapped._opt_called = True  # type: ignore[attr-defined]  # a scheduler made before wrapping asks for it
        return result if loss is None else loss

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it, and run the step hooks a second time

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; not allowed while they are being exchanged."""
        self._require_idle("zero_grad()")
        super().zero_grad(set_to_none=set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of an optimizer, distributed or not. What is on its way is dropped, as by Horovod's."""
        super().load_state_dict(state_dict)
        self._reset()
        self._should_synchronize, self._synchronized = True, False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not supported: their gradients would not be exchanged."""
        raise refusals.parameters_added()

    def _reset(self) -> None:
        for handle, _ in self._begun.values():
            drop(handle)
        self._begun, self._dirty = {}, False
        self._delay = dict.fromkeys(self._delay, self.backward_passes_per_step)

    def _require_idle(self, call: str) -> None:
        if self._begun or self._dirty:
            raise refusals.exchanging(call)

    def _comes(self, parameter: torch.Tensor) -> None:
        if self._delay[parameter] <= 0:
            raise refusals.computed_again(self._parameter_names[parameter], self.backward_passes_per_step)

    def _ready(self, parameter: torch.Tensor) -> None:
        self._dirty, self._synchronized = True, False
        self._delay[parameter] -= 1
        number = self._group_of[parameter]
        if self._allreduce.op != hvd.Adasum and all(self._delay[each] == 0 for each in self._groups[number]):
            self._begin(number)

    def _begin(self, number: int) -> None:
        group = self._groups[number]
        for parameter in group:
            if parameter.grad is None:  # another rank may have computed one
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in group if parameter.grad is not None]
        self._begun[number] = self._allreduce.begin(gradients, self._parameter_names[group[0]])

    @torch.no_grad()
    def _step_by_adasum(self) -> Any:
        """Combine what the step of each rank changes (Maleki et al. 2020, section 3)."""
        before = {parameter: parameter.detach().clone() for parameter in self._delay}
        result = super().step()
        changes = {parameter: parameter - start for parameter, start in before.items()}
        begun = [
            self._allreduce.begin([changes[each] for each in group], self._parameter_names[group[0]])
            for group in self._groups
        ]
        for group, each in zip(self._groups, begun, strict=True):
            for parameter, combined in zip(group, self._allreduce.end(*each), strict=True):
                parameter.copy_(before[parameter] + combined)
        return result


def wrap(
    optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], allreduce: GradientAllreduce, passes: int
) -> UncompressedOptimizer:
    """Return an optimizer of a class derived from that of `optimizer`, which shares its parameter groups and state.

    Collective where there are groups.

    Args:
        names: of all its parameters.
    """
    cls: Any = type(type(optimizer).__name__, (UncompressedOptimizer, type(optimizer)), {})
    wrapped: UncompressedOptimizer = cls.__new__(cls)
    # A learning-rate scheduler made before wraps `step` of that one object; the class's own is what counts here.
    wrapped.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    wrapped._wrapped = optimizer
    wrapped._attach(names, allreduce, passes)
    return wrapped


def _grouped(allreduce: GradientAllreduce, watched: dict[torch.Tensor, str]) -> list[_Group]:
    """Return what is reduced together, on all ranks alike: a number of groups cuts the order of rank 0."""
    asked = allreduce.groups
    if not asked:
        return [(parameter,) for parameter in watched]
    root = 0 if allreduce.process_set.ranks is None else allreduce.process_set.ranks[0]
    order = hvd.broadcast_object(list(watched.values()), root, process_set=allreduce.process_set)
    by_name = {name: parameter for parameter, name in watched.items()}
    mine = torch.tensor([sorted(order) == sorted(by_name)], dtype=torch.uint8)
    if not hvd.allreduce(mine, op=hvd.Min, process_set=allreduce.process_set).item():
        theirs = f", and rank {hvd.rank()} {sorted(by_name)}" if not mine else ", and another rank other parameters"
        raise ConfigError(f"rank {root} trains {sorted(order)}{theirs}: make the same model on all ranks")
    parameters = [by_name[name] for name in order]
    if isinstance(asked, int):
        cuts = [len(parameters) * number // asked for number in range(asked + 1)]
        return [tuple(parameters[start:end]) for start, end in pairwise(cuts) if start < end]
    grouped = {name for group in asked for name in group}
    groups = [tuple(by_name[name] for name in group) for group in asked]
    return groups + [(by_name[name],) for name in order if name not in grouped]


def _put(parameter: torch.Tensor, reduced: torch.Tensor) -> None:
    gradient = parameter.grad
    assert gradient is not None, "it was exchanged"
    if gradient.is_sparse:
        gradient.zero_().add_(reduced if reduced.is_sparse else reduced.to_sparse())
    elif reduced.data_ptr() != gradient.data_ptr():
        gradient.copy_(reduced)


def _tell(
    me: weakref.ref[UncompressedOptimizer],
    what: Callable[[UncompressedOptimizer, torch.Tensor], None],
    parameter: torch.Tensor,
) -> None:
    optimizer = me()
    if optimizer is not None:
        with optimizer._hooking:
            what(optimizer, parameter)
