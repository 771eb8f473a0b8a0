"""The state of DDP's communication hook: one model's compression. By it a compressed model is known."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_compress.engines.leave import at_end
from hvd_compress.engines.select import choose_torch_arrivals, choose_torch_engine
from hvd_compress.engines.torch_timeout import own_timeout_s
from hvd_compress.errors import UsageError
from hvd_compress.frontends.alone import request_of
from hvd_compress.frontends.ddp.hook import GradBucket, GradientHook, Result
from hvd_compress.frontends.ddp.refusals import check_gradients
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.known import register
from hvd_compress.frontends.original import original_of
from hvd_compress.frontends.recorded import recorded_once
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings

_states: weakref.WeakKeyDictionary[torch.nn.Module, CompressionState] = weakref.WeakKeyDictionary()
"""By the DDP model; or by a module that is trained in one process."""
_wrapper_of: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""The compressed DDP model, by the module within it."""


_OF_TWO = (
    "a pair of hook() is registered with two models, and each needs what it remembers for itself: call hook() for each"
)


class CompressionState:
    """What DDP hands to its communication hook: what was asked for, and what this rank remembers.

    It can be pickled, as torch's PowerSGDState: registered anew, it goes on with what it has remembered on the same
    rank of a job of the same size, and elsewhere as a checkpoint does.

    Attributes:
        compression: what was asked for.
        handle: of the session; None before attach().
        hook: what exchanges buckets; None before attach(), and where a module is trained in one process.
    """

    def __init__(self, compression: Request) -> None:
        self.compression = compression
        self.handle: Handle | None = None
        self.hook: GradientHook | None = None
        self._close: Callable[[], object] = lambda: None
        self._kept: dict[str, Any] | None = None  # what came with a pickled state

    def __getstate__(self) -> dict[str, Any]:
        return {"compression": self.compression, "kept": self.handle.state_dict() if self.handle else self._kept}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        CompressionState.__init__(self, state["compression"])
        self._kept = state["kept"]

    def register(self, model: DistributedDataParallel) -> None:
        """Become the communication hook of `model`. Raises as attach(), and what register_comm_hook() raises."""
        self._make(model)
        model.register_comm_hook(self, exchange)
        self._know(model)

    def attach(self, model: DistributedDataParallel) -> None:
        """Exchange the gradients of `model`, with which the program has registered this.

        Raises UnsupportedError for a model whose gradients no hook sees, UsageError where this is another model's, and
        what Handle raises.
        """
        if self.handle is not None:
            raise UsageError(_OF_TWO)
        self._make(model)
        self._know(model)

    def _make(self, model: DistributedDataParallel) -> None:
        check_gradients(model)
        size = dist.get_world_size(model.process_group)
        with recorded_once(Settings.from_environment(), size == dist.get_world_size()) as settings, torch.enable_grad():
            settings = settings.waiting(max(own_timeout_s(model.process_group), own_timeout_s()))
            self.hook = _made_hook(model, request_of(self.compression, size, settings), settings)
        self.handle = self.hook.handle
        rank = dist.get_rank(model.process_group)
        me: weakref.ref[torch.nn.Module] = weakref.ref(model)
        self.handle.front = FrontEnd(rank, size, parameters=partial(_parameters, me), group=model.process_group)

    def attach_alone(self, module: torch.nn.Module) -> None:
        """Exchange nothing, and answer every question: `module` is trained in one process."""
        parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self.handle = Handle.alone(parameters, self.compression, Settings.from_environment())
        self.handle.front = replace(self.handle.front, parameters=partial(_parameters, weakref.ref(module)))
        self._know(module)

    def _know(self, model: torch.nn.Module) -> None:
        assert self.handle is not None
        _states[model] = self
        if isinstance(model, DistributedDataParallel):
            earlier = _wrapper_of.get(model.module, lambda: None)()
            if earlier is not None and earlier in _states:
                _states[earlier]._close()  # it is refused from now on
            _wrapper_of[model.module] = weakref.ref(model)
            model.register_forward_pre_hook(_BeforeForward())
        self._close = at_end(model, self.handle.session.close)
        if self._kept is not None:
            self.handle.load_state_dict(self._kept)
            self._kept = None


def exchange(state: CompressionState, bucket: GradBucket) -> Result:
    """DDP's communication hook."""
    if state.hook is None:  # it was registered by the program
        model = _holder_of(state)
        try:
            state.attach(model)
            require_working(model, None)  # this step's forward pass was before
        except BaseException as error:
            if state.hook is not None:  # else torch's own assertion fails in the next forward pass
                state.hook.fail(error)
            raise
    assert state.hook is not None
    return state.hook(bucket)


exchange.__annotations__.clear()  # DDP compares them with the types themselves, and ours are words
exchange = eagerly(exchange)


def known_state(model: Any) -> CompressionState | None:
    """Return the state of a model, attached where it was registered by the program; None where there is none."""
    model = original_of(model)
    if not isinstance(model, torch.nn.Module):
        return None
    if model not in _states and isinstance(model, DistributedDataParallel):
        for _, state in model._comm_hooks:
            if isinstance(state, CompressionState):
                state.attach(model)
    return _states.get(model)


def known_handle(model: Any) -> Handle | None:
    """Return what is asked of a compressed model; None for others."""
    state = known_state(model)
    return None if state is None else state.handle


register(known_handle)


def inner(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module whose parameters have the names by which they are remembered."""
    model = original_of(model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def _holder_of(state: CompressionState) -> DistributedDataParallel:
    """Return the model with which a state is registered, of which DDP tells its hook nothing. Once in a training."""
    # isinstance() would ask an object for its __class__, at which others' proxies warn or raise
    models: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    holders = [each for each in models if any(held is state for _, held in each._comm_hooks)]
    if len(holders) > 1:
        raise UsageError(_OF_TWO)
    if holders:
        return cast(DistributedDataParallel, holders[0])
    raise UsageError(
        "the DistributedDataParallel of this communication hook is not found, as after gc.freeze(): call "
        "compress(model, ...) in the place of model.register_comm_hook(*hook(...))"
    )


def _made_hook(model: DistributedDataParallel, compression: Request, settings: Settings) -> GradientHook:
    parameters, group = _reduced(model), model.process_group
    connect = partial(
        choose_torch_engine,
        compression.engine,
        group,
        device=next((p.device for p in parameters.values() if p.is_cuda), None),
        timeout_s=settings.timeout_s,
    )
    leaves_out = partial(_leaves_out, weakref.ref(model))
    options = f"DDP with static_graph={model.static_graph}, find_unused_parameters={model.find_unused_parameters}"
    return GradientHook(parameters, compression, settings, connect, choose_torch_arrivals(group), leaves_out, options)


def _parameters(reference: weakref.ref[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Return all parameters of a model, by the names by which they are remembered."""
    model = reference()
    return {} if model is None else dict(inner(model).named_parameters())


def _leaves_out(reference: weakref.ref[DistributedDataParallel]) -> bool:
    """Whether DDP looks for parameters that no rank has used."""
    model = reference()
    return model is not None and bool(model.find_unused_parameters or model.static_graph)


def _reduced(model: DistributedDataParallel) -> dict[str, torch.Tensor]:
    """Return the parameters that DDP reduces, by their names in the module that was wrapped."""
    ignored = set(model.parameters_to_ignore)
    return {n: p for n, p in model.module.named_parameters() if p.requires_grad and n not in ignored}


class _BeforeForward:
    """A hook that cannot be pickled: so DDP cannot, whose copy would train without exchanging gradients."""

    def __call__(self, model: Any, arguments: Any) -> None:
        require_working(model, arguments)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UsageError(
            "a compressed DistributedDataParallel cannot be pickled or copied: copy or save model.module, as in "
            "AveragedModel(model.module), and what state_dict(model) of hvd_compress.ddp returns"
        )


@eagerly
def require_working(model: Any, _: Any) -> None:
    """After a failure DDP itself would say that an assertion within torch failed, and of the rest nothing."""
    model = original_of(model)  # Accelerate calls a copy of the wrapper, where it compiles blocks alone
    hook = _states[model].hook if model in _states else None
    if hook is None or not torch.is_grad_enabled():
        return
    if _wrapper_of[model.module]() not in (None, model):
        raise UsageError(
            "the module is compressed in another DistributedDataParallel than this one: use that one, or call "
            "compress() for this one, which takes over"
        )
    hook.require_working()
    _require_known(model, hook.known)


def _require_known(model: DistributedDataParallel, known: Container[int]) -> None:
    """DDP reduces the parameters that it was given: what came later is trained by each rank for itself."""
    ignored = model.parameters_to_ignore
    if _trains_only(model.module, known):
        return
    late = [
        n for n, p in model.module.named_parameters() if p.requires_grad and id(p) not in known and n not in ignored
    ]
    if late:
        raise UsageError(
            f"{len(late)} parameters are trained that were frozen or absent when DistributedDataParallel wrapped the "
            f"module, {late[0]!r} first: DDP does not exchange their gradients, and each rank would train by itself. "
            "On every rank: wrap the module anew, and call compress() for that; load_state_dict() of it takes what "
            "state_dict() of this one returns"
        )


def _trains_only(module: torch.nn.Module, known: Container[int]) -> bool:
    """Whether no parameters beside these are trained, by their ids. It runs in each step: Module.parameters() takes
    twice as long.
    """
    left, seen = [module], {id(module)}
    while left:
        own = left.pop()
        for parameter in own._parameters.values():
            if parameter is not None and id(parameter) not in known and parameter.requires_grad:
                return False
        for child in own._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                left.append(child)
    return True
