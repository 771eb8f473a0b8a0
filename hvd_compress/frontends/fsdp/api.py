"""What a program calls: compression of an FSDP2 model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.engines.leave import at_end
from hvd_compress.engines.select import choose_torch_arrivals, choose_torch_engine
from hvd_compress.engines.torch_timeout import own_timeout_s
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.asked import check_request
from hvd_compress.frontends.ddp.state import known_handle as known_ddp_handle
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.frontends.fsdp.composed import compress as compress_composed
from hvd_compress.frontends.fsdp.composed import ddp_of
from hvd_compress.frontends.fsdp.exchange import AllReduceHook, GradientExchange, ReduceScatterComm
from hvd_compress.frontends.fsdp.gathering import ParameterGathers, gather
from hvd_compress.frontends.fsdp.gathers import Gathers, for_gathers
from hvd_compress.frontends.fsdp.groups import NEEDS, ParamGroup, groups_of, is_in_backward
from hvd_compress.frontends.fsdp.pieces import checked_patterns
from hvd_compress.frontends.fsdp.requests import for_replicas, for_shards
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.known import register
from hvd_compress.frontends.launched import before_wrapping
from hvd_compress.frontends.original import original_of
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from hvd_compress.warned import warn_caller

_exchanges: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[GradientExchange]] = weakref.WeakKeyDictionary()
"""By the root module, which holds its exchange: that holds the modules."""
_asked: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()
"""What compress() was called with."""
_local: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

SEARCH_STEPS = 40
"""Before forms of gathers are tried, where replicas may still try paths of gradients."""
WARM_UP = 3
"""Steps before that elsewhere."""
_REFUSES = {
    "save_plan": "a plan is of whole parameters, and these are sharded: write the compression that `decisions` names",
    "profile_ccr": "FSDP2 is not profiled: profile the same model in a DistributedDataParallel",
}
"""What a handle cannot do, and why."""
_REFUSES_OF_PART = {"gathered_state_dict": "the model is sharded over a part of the ranks: save one file a rank"}


def compress(
    model: torch.nn.Module,
    compression: Request,
    *,
    feedback: bool = False,
    replicas: dist.ProcessGroup | None = None,
    parameters: Request | Gathers | None = None,
    exact: Sequence[str] = (),
) -> Any:
    """Send the gradients of an FSDP2 model compressed, from its next backward pass on, and perhaps its parameters.

    Call it on every rank, after fully_shard() was called for the submodules and the root, and before the first forward
    pass. What is compressed follows from the mesh:

    | mesh of fully_shard() | what travels compressed |
    | --- | --- |
    | one dimension | the reduce-scatter: without error feedback, by stochastic rounding, unless `feedback` |
    | two dimensions (HSDP) | the all-reduce among replicas, with error feedback; shards are reduced dense before it |
    | one, and `replicas` | the same |
    | that of composable replicate() | the all-reduce |

    How they gather parameters ranks tell each other by the job's store, and wait for that in the first forward pass; in
    the first backward pass they compare the rest of their settings. Gradients are complete when backward() returns.
    Accumulation by set_requires_gradient_sync(False), clipping and mixed precision work as without it.

    With `parameters`, what FSDP gathers travels in few bits, in its forward and its backward pass: weights are rounded
    to nearest, in blocks, as ZeRO++ does (Wang et al. 2023, Section 3.1), or what has changed in them. All ranks
    compute with the same rounded weights, and the optimizer's shards stay exact. Norms, biases and what has fewer than
    4096 elements travel as they are.

    Args:
        model: the root module.
        compression: what a function of `Compression` returns. A reduce-scatter carries int8(), int4(), int3(), int2(),
            natural(), onebit(), bf16() and dense(); replicas also the others, but for policies other than auto().
        feedback: whether a reduce-scatter remembers what it loses, for 8 bytes an element of the whole model a rank;
            it alone decides, whatever the compression says.
        replicas: the ranks that have the same shards, where the model was sharded over a mesh within a host alone.
        parameters: int8(), int4(), bf16() or dense(); differences(int4()) of hvd_compress.fsdp, which keeps a copy of
            the whole model on each rank; or auto(), which chooses from dense, bf16 and int8 by some 30 real steps. None
            leaves gathers to FSDP. Where shards lie within one host, as HSDP's do, leave it out: it saves nothing.
        exact: names of other parameters that travel as they are, or patterns, such as "embed.*".

    Returns:
        The model itself.

    Raises:
        ConfigError: the model is not sharded, or by halves; a contradiction.
        UnsupportedError: a compression that cannot be had here, or a setting of FSDP; the message says what to do.
        UsageError: compress() was called with something else before.
    """
    given, model = model, original_of(model)
    if isinstance(compression, Gathers):
        raise ConfigError("differences() is how parameters are gathered: pass it as parameters=, after a compression")
    check_request(compression)
    form, exact = None if parameters is None else for_gathers(parameters), checked_patterns(exact)
    if isinstance(model, torch.nn.Module) and (ddp := ddp_of(model, make=True)) is not None:
        if feedback or replicas is not None or parameters is not None or exact:
            raise ConfigError(
                "feedback=, replicas=, parameters= and exact= are for shards, and replicate() makes none: leave them"
                " out"
            )
        compress_composed(model, ddp, compression)
        return given
    require_sharded(model)
    require_not_local(model)
    asked = {
        "compression": compression,
        "feedback": feedback,
        "replicas": replicas,
        "parameters": parameters,
        "exact": exact,
    }
    if _is_compressed(model, asked):
        return given
    for name, module in model.named_modules():
        if module is not model and is_compressed(module):
            raise UsageError(
                f"compress() was called for {name} already, which is a part of this model: shard a new model, and call "
                "it for the root alone"
            )
    groups = groups_of(model)
    over, scatters = _over(groups, replicas)
    request = (for_shards if scatters else for_replicas)(compression, feedback)
    if over.size() == 1 and form is not None and form.is_searched and dist.get_world_size() > 1:
        raise ConfigError(
            "parameters=auto() is chosen by steps in which gradients are exchanged, and this mesh has one replica: "
            "call fully_shard() with a mesh of one dimension, or name a form"
        )
    settings = settings_of(over)
    exchange = _made(model, groups, request, over, scatters, settings)
    after = WARM_UP if scatters else SEARCH_STEPS
    exchange.gathers, agree = gather(model, groups, form, exact, settings, after)
    if exchange.gathers is not None:
        exchange.session.reporting.gathers = exchange.gathers.bytes.take
    exchange.handle.front = FrontEnd(
        dist.get_rank(),
        dist.get_world_size(),
        exchange.shard,
        partial(_known, weakref.ref(exchange)),
        partial(_trained, weakref.ref(model)),
        partial(_named, weakref.ref(exchange)),
        group=dist.group.WORLD,
        refuses=_REFUSES if _joins_all(groups, over) else {**_REFUSES, **_REFUSES_OF_PART},
        gathers=partial(_gathers, weakref.ref(exchange)),
    )
    if over.size() == 1:
        warn_caller("one rank exchanges no gradients: nothing of them is compressed")
    else:
        for group in groups:
            _install(exchange, group)
        if replicas is not None:  # of which FSDP does not know
            for group in groups_of(model, frozen=True):
                _install(exchange, group)
    _exchanges[model], _asked[model] = weakref.ref(exchange), asked
    # Before FSDP itself gathers parameters, to which ranks that are in their backward pass do not come.
    model.register_forward_pre_hook(partial(_require_working, exchange, agree), prepend=True)
    at_end(model, exchange.session.close)
    return given


def is_compressed(model: torch.nn.Module) -> bool:
    """Whether compress() was called for this root module."""
    return model in _exchanges


def mark_local(model: torch.nn.Module) -> None:
    """The replicas of this root module take local steps from now on. Raises UsageError where they do already."""
    require_not_local(model)
    _local.add(model)


def require_not_local(model: torch.nn.Module) -> None:
    """Raise UsageError for a model whose replicas take local steps."""
    if model in _local:
        raise UsageError("the replicas of this model take local steps already: shard a new model to change that")


def _is_compressed(model: torch.nn.Module, asked: dict[str, Any]) -> bool:
    """Return whether compress() was called before. Raises UsageError where that was with something else."""
    if model not in _exchanges:
        return False
    if others := [name for name, each in asked.items() if _asked[model][name] != each]:
        raise UsageError(
            f"compress() was called for this model with another {', '.join(others)}: shard a new model to change it"
        )
    return True


def _over(groups: list[ParamGroup], replicas: dist.ProcessGroup | None) -> tuple[dist.ProcessGroup, bool]:
    """Return the ranks whose exchanges are compressed, and whether these are reduce-scatters."""
    shards, native = one_mesh(groups)
    if replicas is not None:
        _check_replicas(replicas, shards, native)
    among = replicas if replicas is not None else native
    over = among if among is not None else shards
    assert over is not None
    return over, among is None


def _made(
    model: torch.nn.Module,
    groups: list[ParamGroup],
    request: Request,
    over: dist.ProcessGroup,
    scatters: bool,
    settings: Settings,
) -> GradientExchange:
    connect = partial(
        choose_torch_engine,
        request.engine,
        over,
        device=groups[0].device if groups[0].device.type == "cuda" else None,
        timeout_s=settings.timeout_s,
    )
    in_backward = partial(_is_in_backward, weakref.ref(model))
    return GradientExchange(groups, in_backward, scatters, request, settings, connect, choose_torch_arrivals(over))


def _joins_all(groups: list[ParamGroup], over: dist.ProcessGroup) -> bool:
    """Whether the model is on all ranks: its shards, times the replicas that exchange with each other."""
    shards = groups[0].shard_group
    replicas = 1 if shards is None or over is shards else over.size()
    return (over.size() if shards is None else shards.size()) * replicas == dist.get_world_size()


def _known(reference: weakref.ref[GradientExchange]) -> dict[str, torch.Tensor]:
    exchange = reference()
    return {} if exchange is None else exchange.stand_ins(frozen=True)


def _gathers(reference: weakref.ref[GradientExchange]) -> ParameterGathers | None:
    exchange = reference()
    return None if exchange is None else exchange.gathers


def _trained(reference: weakref.ref[torch.nn.Module]) -> list[torch.Tensor]:
    model = reference()
    return [] if model is None else list(model.parameters())


def _named(reference: weakref.ref[GradientExchange], bucket: tuple[str, ...]) -> tuple[str, ...]:
    exchange = reference()
    return bucket if exchange is None else exchange.parameters_of(bucket)


def _is_in_backward(reference: weakref.ref[torch.nn.Module]) -> bool:
    model = reference()
    return model is not None and is_in_backward(model)


def _install(exchange: GradientExchange, group: ParamGroup) -> None:
    module: Any = group.module
    if exchange.scatters:
        module.set_custom_reduce_scatter(ReduceScatterComm(exchange, group))
        return
    if group.replica_group is not None:
        group.take_over_replicas()
    module.set_all_reduce_hook(AllReduceHook(exchange, group))


def one_mesh(groups: list[ParamGroup]) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """Return the groups of ranks that share a replica, and that have the same shard, which all modules agree in."""
    if not groups:
        raise ConfigError("the model trains no parameter: unfreeze some before compress()")
    first = groups[0]
    ranks: dict[Any, ParamGroup] = {}
    for group in groups:
        found = _ranks(group.shard_group), _ranks(group.replica_group)
        ranks.setdefault(found, group)
    if len(ranks) > 1:
        other = list(ranks.values())[1]
        raise ConfigError(
            f"{first.name} and {other.name} are sharded over different meshes: call fully_shard() for all modules with "
            "one mesh"
        )
    return first.shard_group, first.replica_group


def _check_replicas(
    replicas: dist.ProcessGroup, shards: dist.ProcessGroup | None, native: dist.ProcessGroup | None
) -> None:
    if native is not None:
        raise ConfigError(
            "replicas= is for a model sharded on a mesh of one dimension, and this has replicas: leave it"
        )
    both = set(_ranks(replicas) or ()) & set(_ranks(shards) or ())
    if both != {dist.get_rank()}:
        raise ConfigError(
            f"replicas={_ranks(replicas)} and the ranks that share a replica, {_ranks(shards)}, must have this rank "
            f"alone in common, {dist.get_rank()}: pass mesh.get_group() of the outer dimension"
        )


def _ranks(group: dist.ProcessGroup | None) -> tuple[int, ...] | None:
    return None if group is None else tuple(dist.get_process_group_ranks(group))


def settings_of(over: dist.ProcessGroup) -> Settings:
    """Return those of the environment. What is written is written of the ranks that exchange with rank 0."""
    settings = Settings.from_environment().waiting(max(own_timeout_s(over), own_timeout_s()))
    if 0 not in dist.get_process_group_ranks(over):
        settings = replace(settings, log=None, tensorboard=None, timeline=None)
    for each in settings.recordings:
        warn_caller(f"FSDP is not profiled: {each.variable} counts under Horovod and DDP alone")
    return replace(settings, recordings=())


def require_sharded(model: Any, call: str = "compress") -> None:
    """Raise ConfigError for a model that is not sharded, UnsupportedError where torch has no such FSDP2."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        raise UnsupportedError(f"torch {torch.__version__} has no {NEEDS}: upgrade torch") from None
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise UnsupportedError(f"torch {torch.__version__} has no {NEEDS}: upgrade torch")
    if isinstance(model, FSDPModule):
        return
    raise ConfigError(
        f"{call}() takes a model that fully_shard() was called for, and this {type(model).__name__} is none: "
        f"{before_wrapping()}fully_shard() the submodules of the plain model and the model itself, then "
        f"{call}(model, ...); a DistributedDataParallel goes to hvd_compress.ddp, and a FullyShardedDataParallel "
        "(FSDP1) nowhere"
    )


@eagerly
def _require_working(exchange: GradientExchange, agree: Callable[[], None], _: torch.nn.Module, arguments: Any) -> None:
    agree()
    if torch.is_grad_enabled():
        exchange.require_working()


def known_handle(model: Any) -> Handle | None:
    """Return what is asked of a compressed model; None for others."""
    model = original_of(model)
    if not isinstance(model, torch.nn.Module):
        return None
    if (ddp := ddp_of(model)) is not None:
        return known_ddp_handle(ddp)
    exchange = _exchange_of(model)
    return None if exchange is None else exchange.handle


def _exchange_of(model: torch.nn.Module) -> GradientExchange | None:
    return _exchanges[model]() if model in _exchanges else None


register(known_handle)
