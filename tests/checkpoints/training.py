"""One rank's training by each front end: its steps, what a program saves of it, and how a program loads that."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as ddp
from hvd_compress import of
from hvd_compress.engines.base import Engine
from hvd_compress.frontends.optimizer.named_parameters import name_parameters, trainable
from hvd_compress.frontends.optimizer.optimizer import wrap
from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.settings import Settings
from tests.checkpoints.cases import MOMENTUM, Case, Gradients, Model, parameters_of, sgd
from tests.clock import Clock
from tests.harness import Scaler, taken_momentum

State = dict[str, Any]

BUCKET_BYTES = 300
"""The model is three buckets then, or two under DDP."""
GRADIENT_S = 0.01
"""What computing a gradient takes on the clock that tests hold."""


class Training(ABC):
    """A model whose gradients are given, and its optimizer.

    Attributes:
        number: of the next step.
    """

    def __init__(self, case: Case, rank: int) -> None:
        self.case, self.rank, self.number = case, rank, 0

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """This rank's parameters, or its shards of them, by name."""

    @abstractmethod
    def compression(self) -> State:
        """Return what compression remembers, as a checkpoint has it."""

    @staticmethod
    def compression_in(saved: State) -> State:
        """Return the same of what saved() returned."""
        found: State = saved["compression"]
        return found

    @abstractmethod
    def step(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Take a step; return the gradients that came back, one after the other."""

    @abstractmethod
    def saved(self) -> State:
        """Return what a program saves."""

    @abstractmethod
    def load(self, saved: State) -> None:
        """Load what saved() returned."""

    def kept(self, saved: State) -> State:
        """Return what must be there after load(), of what saved() returned."""
        return saved

    def train(self, gradients: Gradients, steps: int) -> torch.Tensor:
        """Take steps; return what came back, (steps, numel)."""
        factor = self.case.scale or 1.0
        found = []
        for _ in range(steps):
            found.append(self.step(gradients.of(self.rank, self.number, factor)))
            self.number += 1
        return torch.stack(found)

    def digest(self) -> str:
        """Return a digest of all bits of the parameters and of what is remembered, but for measured times."""
        found = hashlib.sha256()
        for name, tensor in [*self.tensors.items(), *sorted(_leaves(self.compression()["ranks"]))]:
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


class DropIn(Training):
    """The optimizer of hvd_compress.torch, over any engine."""

    def __init__(self, case: Case, engine: Engine, resumes: bool = False, clock: Clock | None = None) -> None:
        """
        Args:
            resumes: buckets are those of the checkpoint that is loaded, if the case has cuts.
            clock: the one that tests hold; the backward pass takes some time on it.
        """
        super().__init__(case, engine.rank)
        self.engine, self.model = engine, Model()
        if clock is not None:
            for parameter in self.model.parameters():
                parameter.register_hook(partial(_pass_time, clock))
        whole = case.cuts and resumes
        self._settings = Settings(
            fusion_threshold_bytes=1 << 20 if whole else BUCKET_BYTES,
            cuts=whole,
            timeout_s=60.0,
            adapt=case.adapts,
            calibration_s=0.1,
        )
        self.plain = self._plain()
        self._wrap()

    def _plain(self) -> torch.optim.Optimizer:
        parameters = list(self.model.parameters())
        if self.case.optimizer is not None:
            return self.case.optimizer(parameters)
        return sgd(parameters, taken_momentum(self.case.compression, MOMENTUM))

    def _wrap(self) -> None:
        """Wrap the plain optimizer as hvd.DistributedOptimizer() does; what it has loaded comes along."""
        names = name_parameters(self.plain, self.model.named_parameters())
        named = {name: parameter for parameter, name in trainable(names).items()}
        reducer = Reducer(named, self.case.compression, lambda: self.engine, ReduceOptions(), self._settings)
        self.optimizer = wrap(self.plain, names, reducer, 1, self.engine.rank, self.engine.world_size)
        if self.case.scale:
            self._scaler = Scaler(self.case.scale)
            of(self.optimizer).follow_loss_scale(self._scaler)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        return parameters_of(self.model)

    def compression(self) -> State:
        return self.compression_in(self.saved())

    @staticmethod
    def compression_in(saved: State) -> State:
        found: State = saved["optimizer"]["hvd_compress"]
        return found

    def step(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.model(gradients).backward()
        self.optimizer.synchronize()
        found = _flat(parameter.grad for parameter in self.model.parameters())
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        return found

    def saved(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, saved: State) -> None:
        """Load; the scaler, if there is one, begins with another scale and is loaded after the optimizer."""
        if self.case.scale:
            self._scaler.scale = 4 * self.case.scale
            self.saved()
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.case.scale:
            self._scaler.scale = self.case.scale
        self.number = saved["optimizer"]["hvd_compress"]["step"]

    def kept(self, saved: State) -> State:
        """Leave out parameter groups, whose settings differ between releases of torch."""
        optimizer = saved["optimizer"]
        carried = optimizer["param_groups"][0]["hvd_compress"]
        return {**saved, "optimizer": optimizer["state"], "compression": optimizer["hvd_compress"], "carried": carried}


class CarriedDropIn(DropIn):
    """Loads its checkpoint into the plain optimizer, before that is wrapped."""

    def load(self, saved: State) -> None:
        self.model.load_state_dict(saved["model"])
        self.plain = self._plain()
        self.plain.load_state_dict({key: each for key, each in saved["optimizer"].items() if key != "hvd_compress"})
        self._wrap()
        self.number = saved["optimizer"]["hvd_compress"]["step"]


class Ddp(Training):
    """DistributedDataParallel, of all ranks or of a group."""

    def __init__(self, case: Case, rank: int, group: dist.ProcessGroup | None = None, hook: Any = None) -> None:
        """`hook`: a pair for register_comm_hook(), instead of compress()."""
        super().__init__(case, rank)
        self.model = DistributedDataParallel(Model(), bucket_cap_mb=BUCKET_BYTES / 2**20, process_group=group)
        os.environ.update(HVD_COMPRESS_ADAPT=str(int(case.adapts)), HVD_COMPRESS_CALIBRATION_S="0.1")
        if hook is None:
            ddp.compress(self.model, case.compression)
        else:
            self.model.register_comm_hook(*hook)
        self.optimizer = sgd(self.model.parameters())

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        return parameters_of(self.model.module)

    def compression(self) -> State:
        return ddp.state_dict(self.model)

    def step(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.model(dict(gradients)).backward()
        found = _flat(parameter.grad for parameter in self.model.parameters())
        self.optimizer.step()
        return found

    def saved(self) -> State:
        return {"model": self.model.module.state_dict(), "compression": self.compression()}

    def load(self, saved: State) -> None:
        self.model.module.load_state_dict(saved["model"])
        ddp.load_state_dict(self.model, saved["compression"])
        self.number = saved["compression"]["step"]


class Fsdp(Training):
    """FSDP2, module by module, or composable replicate() over DDP."""

    def __init__(self, case: Case, rank: int, mesh: str) -> None:
        """`mesh`: "shards", "replicas" or "replicate"."""
        from torch.distributed._composable import replicate
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        import hvd_compress.fsdp as fsdp

        super().__init__(case, rank)
        os.environ["HVD_COMPRESS_ADAPT"] = str(int(case.adapts))
        self._fsdp, self.model = fsdp, Model()
        if mesh == "replicate":
            replicate(self.model, bucket_cap_mb=BUCKET_BYTES / 2**20)
        else:
            sizes = {"shards": (dist.get_world_size(),), "replicas": (dist.get_world_size(), 1)}[mesh]
            over = init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])
            for part in (self.model.first, self.model.second, self.model):
                fully_shard(part, mesh=over)
        fsdp.compress(self.model, case.compression, feedback=case.feedback)
        self.optimizer = sgd(self.model.parameters())

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        return {name: _local(each) for name, each in self.model.named_parameters()}

    def compression(self) -> State:
        found: State = self._fsdp.state_dict(self.model)
        return found

    def step(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.model(dict(gradients)).backward()
        found = _flat(_local(parameter.grad) for parameter in self.model.parameters())
        self.optimizer.step()
        return found

    def saved(self) -> State:
        return {"model": dict(self.tensors), "compression": self.compression()}

    def load(self, saved: State) -> None:
        with torch.no_grad():
            for name, own in self.tensors.items():
                own.copy_(saved["model"][name])
        self._fsdp.load_state_dict(self.model, saved["compression"])
        self.number = saved["compression"]["step"]


def _pass_time(clock: Clock, _: torch.Tensor) -> None:
    clock.reach(clock() + GRADIENT_S)


def _local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found.detach()


def _flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1).clone() for tensor in tensors if tensor is not None])


def _leaves(state: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, torch.Tensor]]:
    for name, each in state.items():
        if isinstance(each, torch.Tensor):
            yield f"{path}/{name}", each
        else:
            yield from _leaves(each, f"{path}/{name}")
