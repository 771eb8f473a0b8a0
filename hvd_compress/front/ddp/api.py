"""What a program calls: compression of a DDP model, and what is known of it."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_compress import compression
from hvd_compress.compressors import Cast
from hvd_compress.engines.leave import at_end
from hvd_compress.engines.select import choose_torch_arrivals, choose_torch_engine
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.front.ddp.hook import GradBucket, GradientHook, Result
from hvd_compress.front.eagerly import eagerly
from hvd_compress.front.handle import Handle, learning_rates_of
from hvd_compress.policies import DecisionPolicy
from hvd_compress.policies.ccr import Ccr
from hvd_compress.profiler.job import profiled_once
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.session.report import StepReport
from hvd_compress.settings import DEFAULT_CCR_STEPS, Settings


class Compression(compression.Compression):
    """What to pass to `compress`. `none` sends every element as it is, and `fp16` as float16."""

    none = Request(Cast())
    fp16 = Request(Cast(torch.float16))


_hooks: weakref.WeakKeyDictionary[torch.nn.Module, GradientHook] = weakref.WeakKeyDictionary()
"""By the DDP model."""
_wrapper_of: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""The compressed DDP model, by the module within it."""


def compress(model: DistributedDataParallel, compression: Request) -> DistributedDataParallel:
    """Send the gradients of a DDP model compressed, from its next backward pass on.

    Registers DDP's communication hook. Call it on every rank, after the model was wrapped. Nothing is communicated
    before the first backward pass, in which ranks compare their settings. DDP's own features work as without it:
    no_sync(), static_graph, find_unused_parameters, gradient_as_bucket_view, join(), which always divides by the number
    of ranks that began.

    A module that is wrapped and compressed again is the new model's, and the old one refuses to run. All processes of
    the job compress as many models, also where a model belongs to some of them: torch counts process groups in their
    names. Each model keeps its process groups until the job ends, among hosts three. After an error in an exchange the
    model's next forward pass raises CommunicationError, and after a conversion of its parameters, which DDP does not
    see, UsageError.

    Args:
        model: wrapped in DistributedDataParallel, over gloo, nccl or mpi; also what torch.compile makes of that.
        compression: what a function of `Compression` returns. Its `engine` is "torch" by default; "mpi" and "horovod"
            take a job that one of them started, with the same ranks.

    Returns:
        The model itself.

    Raises:
        ConfigError: the model is not wrapped, or this is no compression; parameters are not where it wants them.
        UsageError: the model has a communication hook already.
        UnsupportedError: sparse gradients, or a compression that needs the optimizer of hvd_compress.torch.
    """
    compiled, model = model, _wrapped(model)
    _check(model, compression)
    of_all = dist.get_world_size(model.process_group) == dist.get_world_size()
    with profiled_once(Settings.from_environment(), of_all) as settings:
        hook = _made_hook(model, compression, settings)
        model.register_comm_hook(hook, _exchange)
    _hooks[model], _wrapper_of[model.module] = hook, weakref.ref(model)  # an earlier wrapper is refused from now on
    model.register_forward_pre_hook(_require_working)
    at_end(model, hook.session.close)
    return compiled


def last_step(model: DistributedDataParallel) -> StepReport | None:
    """Return the report of the last exchange; None before the first. Raises UsageError for other models."""
    return _handle_of(model).last_step


def decisions(model: DistributedDataParallel) -> Mapping[tuple[str, ...], Decision]:
    """Return how each bucket travels in the next step, by the names of its parameters; empty before the first."""
    return _handle_of(model).decisions


def controller(model: DistributedDataParallel) -> DecisionPolicy | None:
    """Return what chooses while training, with its `history`; None where nothing is to choose."""
    return _handle_of(model).controller


def state_dict(model: DistributedDataParallel) -> dict[str, Any]:
    """Return what this rank's compression remembers: residuals and compressors' states, by parameter name.

    Nothing is communicated. Residuals differ from rank to rank: save one file a rank to keep them all.
    """
    handle = _handle_of(model)
    handle.session.loss_scale.update()
    return handle.state_dict(*_place(model))


def load_state_dict(model: DistributedDataParallel, state: Mapping[str, Any]) -> None:
    """Load what state_dict() gave. Nothing is communicated.

    Residuals come back only on the rank that saved them, in a job of the same size; elsewhere they start from zero,
    with a warning: another rank's residual would be applied twice.

    Raises:
        ConfigError: it is not such a state, or of unknown parameters or other lengths.
        UsageError: the model is not compressed.
    """
    handle = _handle_of(model)
    handle.load_state_dict(state, dict(_wrapped(model).module.named_parameters()), *_place(model))


def ccr(model: DistributedDataParallel) -> Ccr | None:
    """Return the communication-to-computation ratio that was profiled last; None before."""
    return _handle_of(model).ccr


def gather_figures(model: DistributedDataParallel, figures: Sequence[float]) -> list[list[float]]:
    """Return the figures of all ranks, in their order: for what all are to decide alike. All ranks bring as many.

    Between two steps. Raises UsageError before the first one.
    """
    return _handle_of(model).session.gather_figures(figures)


def end_epoch(model: DistributedDataParallel) -> None:
    """An epoch is over, for Compression.accordion() without epoch_steps; for others it does nothing.

    All ranks call it, between two steps.
    Behind the step of a learning-rate scheduler: the rates of the coming epoch count (follow_learning_rate()).
    """
    _handle_of(model).session.end_epoch()


def follow_learning_rate(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Let Compression.accordion() see the learning rates of the optimizer that trains this model, on every rank.

    Raises ConfigError for what is no optimizer, or that of another model.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"a {type(optimizer).__name__} has no learning rates: pass the optimizer, not its scheduler")
    mine = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"]):
        raise ConfigError(f"this {type(optimizer).__name__} has no parameter of this model: pass that which trains it")
    _handle_of(model).session.learning_rates = partial(learning_rates_of, weakref.ref(optimizer))


def profile_ccr(model: DistributedDataParallel, steps: int = DEFAULT_CCR_STEPS) -> None:
    """Have the communication-to-computation ratio profiled by the coming steps, for ccr(). All ranks call it.

    In these steps exchanges begin when the backward pass is over.

    Raises ConfigError where `steps` is no number of steps.
    """
    _handle_of(model).profile_ccr(steps)


def save_plan(model: DistributedDataParallel, path: str | Path) -> None:
    """Write how buckets travel now to a file, so that Compression.plan(path) lets another run do the same.

    Nothing is communicated, and all ranks would write the same: call it on one.

    Raises:
        UsageError: before the first exchange, or where buckets are skipped in the coming step; the model is not
            compressed.
        PlanError: the file cannot be written.
    """
    _handle_of(model).save_plan(path)


def follow_loss_scale(model: DistributedDataParallel, scaler: Any) -> None:
    """Keep residuals in the units of a torch.amp.GradScaler: when its scale changes, they are rescaled with it."""
    _handle_of(model).follow_loss_scale(scaler)


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


@eagerly
def _exchange(hook: GradientHook, bucket: GradBucket) -> Result:
    """DDP's communication hook."""
    return hook(bucket)


_exchange.__annotations__.clear()  # DDP compares them with the types themselves, and ours are words


def _handle_of(model: DistributedDataParallel) -> Handle:
    hook = _hooks.get(_wrapped(model)) if isinstance(model, torch.nn.Module) else None
    if hook is None:
        raise UsageError(
            f"this {type(model).__name__} is not compressed: pass the DistributedDataParallel that compress() was "
            "called for"
        )
    return hook.handle


def _wrapped(model: Any) -> Any:
    """Return the model that was compiled, or else the model itself."""
    return getattr(model, "_orig_mod", model)


def _place(model: DistributedDataParallel) -> tuple[int, int]:
    group = _wrapped(model).process_group
    return dist.get_rank(group), dist.get_world_size(group)


def _check(model: Any, asked: Any) -> None:
    if not isinstance(model, DistributedDataParallel):
        first = (
            ""
            if dist.is_available() and dist.is_initialized()
            else "launch the program with torchrun, call torch.distributed.init_process_group(), then "
        )
        raise ConfigError(
            f"compress() takes a model that is wrapped, and this is a {type(model).__name__}: {first}model = "
            "DistributedDataParallel(model), then compress(model, ...)"
        )
    if not isinstance(asked, Request):
        if inspect.isfunction(asked):
            called = f"Compression.{asked.__name__}"
            raise ConfigError(f"{called} is a function: call it, as in {called}()")
        raise ConfigError(
            f"{asked!r} is no compression: pass what a function of Compression returns, as topk(0.01) or "
            "of(compressor) does"
        )
    if asked.policy is not None and (why := asked.policy.needs_optimizer):
        raise UnsupportedError(f"this needs hvd_compress.torch's optimizer, as {why}")
    if model in _hooks:
        raise UsageError("compress() was called for this model already: wrap the module anew to change its compression")
    if getattr(model, "_comm_hooks", None):
        raise UsageError("the model has a communication hook already, and DDP takes one: wrap the module anew")
    sparse = [name for name, module in model.module.named_modules() if getattr(module, "sparse", False) is True]
    if sparse:
        raise UnsupportedError(
            f"{sparse[0]!r} has sparse gradients, which DDP does not hand to a hook: make it with sparse=False, or use "
            "hvd_compress.torch"
        )


def _leaves_out(reference: weakref.ref[DistributedDataParallel]) -> bool:
    """Whether DDP looks for parameters that no rank has used."""
    model = reference()
    return model is not None and bool(model.find_unused_parameters or model.static_graph)


def _reduced(model: DistributedDataParallel) -> dict[str, torch.Tensor]:
    """Return the parameters that DDP reduces, by their names in the module that was wrapped."""
    ignored = set(model.parameters_to_ignore)
    return {n: p for n, p in model.module.named_parameters() if p.requires_grad and n not in ignored}


@eagerly
def _require_working(model: Any, _: Any) -> None:
    """After a failure DDP itself would say that an assertion within torch failed, and of the rest nothing."""
    if not torch.is_grad_enabled() or model not in _hooks:
        return
    if _wrapper_of[model.module]() not in (None, model):
        raise UsageError(
            "the module is compressed in another DistributedDataParallel than this one: use that one, or call "
            "compress() for this one, which takes over"
        )
    _hooks[model].require_working()
    _require_known(model)


def _require_known(model: DistributedDataParallel) -> None:
    """DDP reduces the parameters that it was given: what came later is trained by each rank for itself."""
    known, ignored = _hooks[model].known, model.parameters_to_ignore
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
