"""`DistributedOptimizer` with Horovod's signature: chooses between Horovod's own and ours."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from hvd_compress.checks import check_whole, is_whole
from hvd_compress.compressors.base import is_compressor
from hvd_compress.engines.base import Engine
from hvd_compress.engines.horovod import HorovodEngine
from hvd_compress.engines.select import choose_arrivals, choose_engine
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.alone import request_of
from hvd_compress.frontends.horovod import uncompressed
from hvd_compress.frontends.horovod.background import give_way
from hvd_compress.frontends.horovod.runtime_selection import RUNTIME, hvd
from hvd_compress.frontends.horovod.stock import is_stock, watch_stock
from hvd_compress.frontends.optimizer import refusals
from hvd_compress.frontends.optimizer.named_parameters import name_parameters, trainable
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer, wrap
from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.frontends.optimizer.watchers import taking_over
from hvd_compress.frontends.recorded import recorded_once
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from hvd_compress.warned import warn_caller

_horovods: Any = getattr(hvd, "DistributedOptimizer", None)  # patch_horovod() puts ours in its place


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = hvd.Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: Any = hvd.global_process_set,
) -> Any:
    """Wrap an optimizer so that it applies gradients reduced over all ranks. Arguments are those of Horovod.

    With a compression of this package the gradients take its pipeline; with one of Horovod's they are allreduced by
    Horovod's own optimizer, or by UncompressedOptimizer. Nothing is communicated before the first step, in which ranks
    compare their settings.

    A distributed optimizer that was wrapped over some of these parameters earlier, and is still alive, exchanges
    nothing more; its step() raises UsageError.

    Raises:
        ConfigError: names are missing or doubled, an argument is out of range, or a GPU is to compress parameters that
            are on none.
        UsageError: hvd.init() was not called, the optimizer is a distributed one already, or another one is exchanging
            gradients of these parameters.
        UnsupportedError: op=Adasum, LBFGS, parameters on a device that is neither CPU nor CUDA, or an elastic job, with
            a compression of this package, or without Horovod.
    """
    _check_optimizer(optimizer, compression)
    if not isinstance(compression, Request):
        _check_uncompressed(compression)
        rest = op, gradient_predivide_factor, num_groups, groups, sparse_as_dense, process_set
        wraps = _by_horovod if RUNTIME == "horovod" else _without_compression
        with taking_over(_parameters(optimizer)):
            return wraps(optimizer, named_parameters, compression, backward_passes_per_step, *rest)
    _require_started()
    _warn_if_alone()
    names = name_parameters(optimizer, named_parameters)
    trained = trainable(names)
    options = ReduceOptions(
        average=_is_average(op),
        predivide_factor=_checked_factor(gradient_predivide_factor, op),
        groups=_named_groups(groups if groups is not None else num_groups, trained),
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=check_whole("backward_passes_per_step", backward_passes_per_step, 1),
    )
    with taking_over(_parameters(optimizer)):
        if not process_set.included():
            return wrap(optimizer, names, None, backward_passes_per_step, rank=0, size=1)
        parameters = {name: parameter for parameter, name in trained.items()}
        asked = compression.beside("sgd" if isinstance(optimizer, torch.optim.SGD) else "adam")
        with recorded_once(Settings.from_environment(), of_all=not process_set.process_set_id) as settings:
            make = partial(_reducer, parameters, asked, options, settings, process_set)
            wrapped = wrap(optimizer, names, make(), backward_passes_per_step, process_set.rank(), process_set.size())
    _makes[wrapped] = asked, make
    if named_parameters is None:
        _tell_of_another(wrapped)
    return wrapped


def _reducer(
    parameters: dict[str, torch.Tensor], asked: Request, options: ReduceOptions, settings: Settings, process_set: Any
) -> Reducer:
    request, arrivals = request_of(asked, process_set.size(), settings), choose_arrivals(asked.engine, process_set, hvd)
    connect = partial(_connect, asked.engine, process_set, settings)
    return Reducer(parameters, request, connect, options, settings, arrivals=arrivals)


_makes: weakref.WeakKeyDictionary[ReducingOptimizer, tuple[Request, Callable[[], Reducer]]] = (
    weakref.WeakKeyDictionary()
)
"""What a distributed optimizer was asked for, and what makes its reducer over the ranks that have met."""


def asked_of(optimizer: torch.optim.Optimizer | None) -> Request | None:
    """Return the compression that a distributed optimizer was given, also where one rank alone has no use for it."""
    return _makes[optimizer][0] if isinstance(optimizer, ReducingOptimizer) and optimizer in _makes else None


def renew(optimizer: torch.optim.Optimizer, counts: bool) -> None:
    """Let a distributed optimizer exchange over the ranks that have met now. `counts`: as ReducingOptimizer.renew()."""
    if isinstance(optimizer, ReducingOptimizer) and optimizer in _makes:
        optimizer.renew(_makes[optimizer][1](), hvd.rank(), hvd.size(), counts=counts)
    elif isinstance(optimizer, uncompressed.UncompressedOptimizer):
        optimizer.renew()


def _check_uncompressed(compression: Any) -> None:
    if _is_factory(compression):
        raise ConfigError(
            f"compression={compression.__name__} is a function: call it, as in Compression.{compression.__name__}()"
        )
    if not hasattr(compression, "compress") or is_compressor(compression):
        raise ConfigError(
            f"compression={compression!r} is no compression: pass one such as Compression.topk(0.01), "
            "Compression.none or, of your own, Compression.of(compressor)"
        )


def _by_horovod(optimizer: torch.optim.Optimizer, named_parameters: Any, compression: Any, *options: Any) -> Any:
    """Hand the call on unchanged."""
    dtypes = {p.dtype for p in _parameters(optimizer) if p.requires_grad}
    if compression is hvd.Compression.none and torch.bfloat16 in dtypes:
        raise ConfigError(
            "Compression.none is Horovod's and exchanges no bfloat16 gradients: take Compression.dense(), which "
            "sends all elements as they are"
        )
    wrapped = _horovods(optimizer, named_parameters, compression, *options)
    watch_stock(wrapped)
    return wrapped


def _without_compression(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any,
    compression: Any,
    passes: int,
    op: Any,
    factor: float,
    num_groups: int,
    groups: Any,
    sparse_as_dense: bool,
    process_set: Any,
) -> Any:
    """What Horovod does with the call, on this package's runtime."""
    _require_started()
    if op not in (hvd.Average, hvd.Sum, hvd.Adasum):
        raise ConfigError(f"op = {op!r} is not one of hvd.Average, hvd.Sum, hvd.Adasum")
    names = name_parameters(optimizer, named_parameters)
    asked = _named_groups(groups if groups is not None else num_groups, trainable(names))
    allreduce = uncompressed.GradientAllreduce(
        compression, op, _checked_factor(factor, op), asked, sparse_as_dense, process_set
    )
    passes = check_whole("backward_passes_per_step", passes, 1)
    return uncompressed.wrap(optimizer, names, allreduce, passes)


def _require_started() -> None:
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        raise UnsupportedError(
            "Horovod's elastic jobs change their ranks, which a compression cannot follow there: launch with "
            "`hvd-compress run --min-np` and HVD_COMPRESS_RUNTIME=torch, or take Compression.none on Horovod's runtime "
            "(HVD_COMPRESS_RUNTIME=horovod)"
        )
    if not hvd.is_initialized():
        raise UsageError("hvd.init() comes first: without it there are no ranks to train with")


_without_names: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_told_of_two = False


def _tell_of_another(wrapped: torch.optim.Optimizer) -> None:
    """Warn, once, where two optimizers that call their parameters alike are in use: one steps, and this was wrapped."""
    for other in _without_names:
        other.register_step_post_hook(_tell_of_two)
    _without_names.add(wrapped)


def _tell_of_two(*_: Any) -> None:
    global _told_of_two
    if not _told_of_two:
        _told_of_two = True
        warn_caller(
            "two optimizers are in use that were wrapped without named_parameters: both call their parameters "
            "noname.0.0 and so on, so that neither a message nor a checkpoint tells one model's from the other's. Pass "
            "each its own model.named_parameters()"
        )


def _connect(name: str, process_set: Any, settings: Settings) -> Engine:
    """Choose the engine; where gradients travel among hosts without Horovod's threads, these give way to training."""
    engine = choose_engine(name, process_set, hvd, settings.timeout_s)
    engine.locate()
    if not isinstance(engine, HorovodEngine) and engine.among_hosts:
        give_way(settings.horovod_niceness)
    return engine


def _check_optimizer(optimizer: torch.optim.Optimizer, compression: Any) -> None:
    """Refuse what would reduce twice, and what would not reduce each gradient of a step."""
    if isinstance(optimizer, ReducingOptimizer) or is_stock(optimizer):
        raise UsageError(
            "the optimizer is distributed already: pass the torch optimizer that it was made from. To change its "
            f"arguments while training, make a new {type(optimizer).__name__} over the same parameter groups, pass "
            "that, and load state_dict() of the old optimizer into what it returns"
        )
    if isinstance(optimizer, torch.optim.LBFGS) and isinstance(compression, Request):
        raise refusals.several_gradients()


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_factory(compression: Any) -> bool:
    return callable(compression) and not isinstance(compression, type)


def _warn_if_alone() -> None:
    """A launcher of another MPI starts processes of which each believes to be the only one."""
    started = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE") or "1"
    if started != "1" and hvd.size() == 1:
        warnings.warn(
            f"the launcher started {started} processes, and each trains by itself: launch with the mpirun of the "
            "MPI that Horovod was built with",
            stacklevel=3,
        )


def _is_average(op: Any) -> bool:
    if op == hvd.Adasum:
        raise UnsupportedError("op=Adasum combines whole gradients: use Compression.none or .fp16, or op=Average")
    if op not in (hvd.Average, hvd.Sum):
        raise ConfigError(f"op = {op!r} is not one of hvd.Average, hvd.Sum")
    return bool(op == hvd.Average)


def _checked_factor(factor: float, op: Any) -> float:
    if not 0 < factor < float("inf"):
        raise ConfigError(f"gradient_predivide_factor = {factor!r} must be above 0")
    if factor != 1.0 and op != hvd.Average:
        raise ConfigError("gradient_predivide_factor is for op=Average only")
    return float(factor)


def _named_groups(groups: Any, names: dict[torch.Tensor, str]) -> tuple[tuple[str, ...], ...] | int:
    """Groups of tensors as groups of names; tensors that are not trained are left out, as Horovod does."""
    if is_whole(groups, 0):
        return groups
    if not isinstance(groups, (list, tuple)):
        raise ConfigError(f"groups = {groups!r} must be a number, 0 or more, or a list of lists of parameters")
    if any(isinstance(group, torch.Tensor) for group in groups):
        raise ConfigError("groups must be a list of lists of parameters, not of parameters")
    groups = [list(group) for group in groups]  # may be generators, such as module.parameters()
    members = [parameter for group in groups for parameter in group]
    if any(not isinstance(parameter, torch.Tensor) for parameter in members):
        raise ConfigError("groups must be lists of tensors")
    if len({id(parameter) for parameter in members}) < len(members):
        raise ConfigError("a parameter may appear in one group only, once")
    named = (tuple(names[parameter] for parameter in group if parameter in names) for group in groups)
    return tuple(group for group in named if group)
