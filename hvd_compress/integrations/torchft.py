"""Compressed gradients where torchft decides which replicas are there: for its Manager, with its lighthouse.

    manager = Manager(pg=ProcessGroup(), load_state_dict=..., state_dict=..., min_replica_size=2)
    model = DistributedDataParallel(manager, model, compression=Compression.int4())
    optimizer = OptimizerWrapper(manager, optimizer)

instead of torchft's own ProcessGroupGloo and DistributedDataParallel; the rest of the program stays as it is. Or
several steps between two exchanges:

    local = LocalSteps(manager, optimizer, model, every=8)
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import parallel

from hvd_compress.checks import check_whole
from hvd_compress.ddp import Compression
from hvd_compress.engines.dialing import Endpoint, Listener
from hvd_compress.engines.leave import at_end
from hvd_compress.engines.sockets import Meeting
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.extras import needed
from hvd_compress.frontends.ddp.quorum import Quorum, QuorumHook
from hvd_compress.frontends.ddp.refusals import check_compression, check_gradients, is_sharded
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.known import register
from hvd_compress.frontends.local.arguments import check_optimizer, check_outer, checked
from hvd_compress.frontends.local.outer import Make, averaging
from hvd_compress.frontends.local.quorum import QuorumSteps
from hvd_compress.frontends.local.replicas import trained
from hvd_compress.frontends.original import original_of
from hvd_compress.request.request import Request
from hvd_compress.settings import DEFAULT_TIMEOUT_S, Settings

with needed("torchft", "hvd_compress.integrations.torchft"):
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupDummy, ProcessGroupGloo

__all__ = ["Compression", "DistributedDataParallel", "LocalSteps", "ProcessGroup"]


class ProcessGroup(ProcessGroupGloo):  # type: ignore[misc]  # mypy does not read torchft
    """A ProcessGroupGloo by whose store ranks also learn where they listen for what is compressed.

    Attributes:
        quorum: the ranks that are there; None before the first.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        """Nothing is communicated.

        Args:
            timeout: as of ProcessGroupGloo; also how long an exchange waits for a rank of which nothing comes, unless
                HVD_COMPRESS_TIMEOUT_S says so.
        """
        super().__init__(timeout)
        self.quorum: Quorum | None = None
        self._listener: Listener | None = None

    @property
    def timeout_s(self) -> float:
        return float(self._timeout.total_seconds())

    def abort(self, errored: bool = True) -> None:
        """End what is on its way, as ProcessGroupGloo."""
        if self.quorum is not None:
            self.quorum.meeting.end("the process group was aborted, as torchft does where ranks meet anew")
        super().abort(errored)

    def shutdown(self) -> None:
        """The program is over: what others still wait for from this rank does not come."""
        self.abort(errored=False)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        super().shutdown()

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        if self._listener is None:
            self._listener = Listener()
        store.set(f"hvd_compress/{rank}", json.dumps(self._listener.endpoint.told()))
        told = [json.loads(store.get(f"hvd_compress/{each}")) for each in range(world_size)]
        meeting = Meeting(rank, [Endpoint.of(each) for each in told], self._listener, f"quorum {self._quorum_id}")
        self.quorum = Quorum(self._quorum_id, meeting)
        return super()._create_pg(store, rank, world_size)


class DistributedDataParallel(parallel.DistributedDataParallel):
    """torchft's, whose gradients travel compressed among the replicas that are there.

    Where a replica has failed the step counts on none; the others go on without it, and keep what they owe. One that
    comes gets what compression has settled on, and owes nothing. `hvd_compress.of()` takes this model.

    Attributes:
        handle: as hvd_compress.of() returns it; another one where replicas have met anew.
    """

    def __init__(self, manager: Manager, module: nn.Module, compression: Request | None = None, **options: Any) -> None:
        """Nothing is communicated.

        Args:
            manager: made with pg=ProcessGroup() of this module.
            compression: what a function of `Compression` returns; int4() by default.
            options: of torch's DistributedDataParallel.

        Raises:
            ConfigError: the manager has another process group; or this is no compression.
            UnsupportedError: sparse gradients, static_graph=True, or a compression that needs the optimizer of
                hvd_compress.torch.
        """
        group = _group_of(manager)
        request = Compression.int4() if compression is None else compression
        check_compression(request)
        _check_engine(request)
        if options.get("static_graph"):
            raise UnsupportedError(
                "static_graph=True cuts buckets anew, and replicas that come later have others: leave it out"
            )
        # Buckets stay as they are first cut, as those of replicas that come later are.
        super().__init__(module, process_group=ProcessGroupDummy(0, 1), find_unused_parameters=True, **options)
        check_gradients(self)
        settings = _settings(group)
        ignored = set(self.parameters_to_ignore)
        reduced = {n: p for n, p in module.named_parameters() if p.requires_grad and n not in ignored}
        hook = QuorumHook(reduced, request, settings, manager, lambda: group.quorum)
        _hooks[self] = hook
        self.register_comm_hook(hook, _exchange)
        self.register_forward_pre_hook(_before_forward)
        manager.register_state_dict_fn(_key(manager), partial(_has_been_given, hook), dict)
        at_end(self, hook.close)

    @property
    def handle(self) -> Handle:
        return _hooks[self].handle


class LocalSteps:
    """Local steps, which replicas exchange once in several: for a plain model, and its optimizer.

        local = LocalSteps(manager, optimizer, model, every=8)

    The loop is as for one process: `optimizer.step()` counts, and each round is a step of the manager, which is not
    started elsewhere. A round that fails loses nothing: what this replica has learned in it goes into the next one. A
    replica that has come, or was away, goes on from the mean of the others. It gets model and optimizer from torchft,
    by what the manager has for state_dict and load_state_dict.

    Attributes:
        handle: as hvd_compress.of() returns it; another one where replicas have met anew.
    """

    def __init__(
        self,
        manager: Manager,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        every: int = 8,
        compression: Request | None = None,
        outer: Make = averaging,
    ) -> None:
        """Nothing is communicated.

        Args:
            manager: made with pg=ProcessGroup() of this module.
            optimizer: of torch; each replica keeps its own state.
            model: whose parameters it trains; or one that fully_shard() has sharded over the ranks of a replica group.
            every: steps in a round.
            compression: of what is exchanged; int4() by default.
            outer: what moves the parameters by the mean, as of hvd_compress.local.LocalSteps.

        Raises:
            ConfigError: an argument is out of range, or the manager has another process group.
            UnsupportedError: the optimizer is LBFGS, or the compression has a policy other than auto().
        """
        check_optimizer(optimizer)
        request = checked(Compression.int4() if compression is None else compression)
        check_outer(outer)
        check_whole("every", every, 1)
        _check_engine(request)
        group = _group_of(manager)
        parameters, before_writing = _parameters_of(model, optimizer)
        self._steps = QuorumSteps(
            manager,
            parameters,
            request,
            _settings(group),
            lambda: group.quorum,
            every=every,
            outer=outer,
            before_writing=before_writing,
        )
        manager.register_state_dict_fn(_key(manager), self._steps.load_state_dict, self._steps.state_dict)
        optimizer.register_step_post_hook(self._steps.after_step)
        at_end(self._steps, self._steps.hook.close)

    def finish(self) -> bool:
        """After the last step: end the round, however short. All replicas call it. Return whether it counts."""
        return self._steps.exchange()

    @property
    def handle(self) -> Handle:
        return self._steps.hook.handle


def _parameters_of(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
    """Return what this rank trains, by name, and what to call before it is written."""
    if is_sharded(original_of(model)):
        from hvd_compress.frontends.fsdp.local import shards_of  # which needs a newer torch

        return shards_of(model, optimizer)
    return trained(optimizer, model), lambda: None


def _group_of(manager: Manager) -> ProcessGroup:
    group = manager._pg
    if not isinstance(group, ProcessGroup):
        raise ConfigError(
            f"the manager has a {type(group).__name__}, by which replicas do not learn where others listen: make it "
            "with pg=hvd_compress.integrations.torchft.ProcessGroup()"
        )
    return group


def _check_engine(request: Request) -> None:
    if request.engine != "auto":
        raise ConfigError(f"engine={request.engine!r}: with torchft there is none but that over sockets: leave it out")


_hooks: weakref.WeakKeyDictionary[nn.Module, QuorumHook] = weakref.WeakKeyDictionary()

_models: weakref.WeakKeyDictionary[Manager, int] = weakref.WeakKeyDictionary()
"""How many each manager has, which all replicas make in one order."""


def _key(manager: Manager) -> str:
    _models[manager] = _models.get(manager, 0) + 1
    return f"hvd_compress {_models[manager]}"


def _settings(group: ProcessGroup) -> Settings:
    found = Settings.from_environment()
    return replace(found, timeout_s=group.timeout_s) if found.timeout_s == DEFAULT_TIMEOUT_S else found


def _exchange(hook: QuorumHook, bucket: Any) -> Any:
    return hook(bucket)


_exchange.__annotations__.clear()  # DDP compares them with the types themselves
_exchange = eagerly(_exchange)


def _has_been_given(hook: QuorumHook, _: object) -> None:
    """The state of another replica, by the manager."""
    hook.is_behind = True


@eagerly
def _before_forward(model: Any, _: Any) -> None:
    if torch.is_grad_enabled():
        _hooks[model].require_working()


def _handle(compressed: Any) -> Handle | None:
    compressed = original_of(compressed)
    return compressed.handle if isinstance(compressed, DistributedDataParallel | LocalSteps) else None


register(_handle)
