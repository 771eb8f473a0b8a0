"""Rivals that exchange once in several steps: torchft, and torch's own post-local SGD.

No extra installs torchft: `pip install torchft==0.2.0`, or it is not among the methods.
"""

from __future__ import annotations

import os
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

HAS_TORCHFT = find_spec("torchft") is not None
TIMEOUT = timedelta(seconds=600)


def torch_post_local(model: DistributedDataParallel) -> None:
    """No exchange of gradients but within this rank; its optimizer exchanges."""
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    model.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=0), post_localSGD_hook)


def averaging(optimizer: torch.optim.Optimizer, every: int) -> torch.optim.Optimizer:
    """Return an optimizer with torch's averaging of parameters after each `every` of its steps."""
    return PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=every, warmup_steps=every - 1))


class TorchftSteps:
    """torchft's LocalSGD, or its DiLoCo in one fragment, of a model that is whole on each of several hosts."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, name: str, every: int, is_diloco: bool
    ) -> None:
        """All ranks call it, connected by torch.distributed."""
        from torchft.coordination import LighthouseServer
        from torchft.local_sgd import DiLoCo, LocalSGD
        from torchft.manager import Manager
        from torchft.process_group import ProcessGroupGloo

        rank, own = dist.get_rank(), _address()
        told: list[Any] = [None]
        if rank == 0:
            self._lighthouse = LighthouseServer(bind=f"{own}:0", min_replicas=dist.get_world_size())
            told = [f"http://{own}:{self._lighthouse.address().rpartition(':')[2]}"]
        dist.broadcast_object_list(told)
        self._store = dist.TCPStore(own, 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=TIMEOUT),
            load_state_dict=None,
            state_dict=None,
            min_replica_size=dist.get_world_size(),
            use_async_quorum=False,
            init_sync=False,
            **{"timeout": TIMEOUT, "quorum_timeout": TIMEOUT, "connect_timeout": TIMEOUT},
            **{"rank": 0, "world_size": 1, "store_addr": own, "store_port": self._store.port},
            **{"lighthouse_addr": told[0], "replica_id": f"{name}{rank}", "hostname": own},
        )
        if is_diloco:
            outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            DiLoCo(self.manager, [model], optimizer, outer, every).__enter__()
        else:
            LocalSGD(self.manager, model, optimizer, every).__enter__()


def _address() -> str:
    from hvd_compress.netlab.network import address

    return address(dist.get_rank() // int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]) + 1)
