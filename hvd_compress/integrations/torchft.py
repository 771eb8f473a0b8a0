"""Compressed gradients where torchft decides which replicas are there: for its Manager, with its lighthouse.

    manager = Manager(pg=ProcessGroup(), load_state_dict=..., state_dict=..., min_replica_size=2)
    model = DistributedDataParallel(manager, model, compression=Compression.int4())
    optimizer = OptimizerWrapper(manager, optimizer)

In the place of torchft's own ProcessGroupGloo and DistributedDataParallel; the rest of the program stays as it is.
"""

from __future__ import annotations

import json
import weakref
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn import parallel

from hvd_compress.ddp import Compression
from hvd_compress.engines.dialing import Endpoint, Listener
from hvd_compress.engines.leave import at_end
from hvd_compress.engines.sockets import Meeting
from hvd_compress.errors import ConfigError
from hvd_compress.extras import needed
from hvd_compress.frontends.ddp.quorum import Quorum, QuorumHook
from hvd_compress.frontends.ddp.refusals import check_compression, check_gradients
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.known import register
from hvd_compress.frontends.original import original_of
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings

with needed("torchft", "hvd_compress.integrations.torchft"):
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupDummy, ProcessGroupGloo

__all__ = ["Compression", "DistributedDataParallel", "ProcessGroup"]


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
            UnsupportedError: sparse gradients, or a compression that needs the optimizer of hvd_compress.torch.
        """
        group = manager._pg
        if not isinstance(group, ProcessGroup):
            raise ConfigError(
                f"the manager has a {type(group).__name__}, by which replicas do not learn where others listen: make "
                "it with pg=hvd_compress.integrations.torchft.ProcessGroup()"
            )
        request = Compression.int4() if compression is None else compression
        check_compression(request)
        if request.engine != "auto":
            raise ConfigError(
                f"engine={request.engine!r}: with torchft there is that over sockets alone, so leave it out"
            )
        # Buckets stay as they are first cut, as those of replicas that come later are: torch cuts no others so.
        super().__init__(module, process_group=ProcessGroupDummy(0, 1), find_unused_parameters=True, **options)
        check_gradients(self)
        settings = Settings.from_environment().waiting(group.timeout_s)
        ignored = set(self.parameters_to_ignore)
        reduced = {n: p for n, p in module.named_parameters() if p.requires_grad and n not in ignored}
        hook = QuorumHook(reduced, request, settings, manager, lambda: group.quorum)
        _hooks[self] = hook
        self.register_comm_hook(hook, _exchange)
        self.register_forward_pre_hook(_before_forward)
        manager.register_state_dict_fn(f"hvd_compress {next(_numbers)}", partial(_has_been_given, hook), dict)
        at_end(self, hook.close)

    @property
    def handle(self) -> Handle:
        return _hooks[self].handle


_hooks: weakref.WeakKeyDictionary[nn.Module, QuorumHook] = weakref.WeakKeyDictionary()

_numbers = count()
"""Of models, which all replicas make in one order."""


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


def _handle(trained: Any) -> Handle | None:
    trained = original_of(trained)
    return trained.handle if isinstance(trained, DistributedDataParallel) else None


register(_handle)
