"""All that is read of torch's FSDP2 beyond its public functions: which parameters travel together, and over whom.

As of torch 2.13 and 2.15: `FSDPState._fsdp_param_groups`, and of those and of their parameters what `ParamGroup` reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.buckets.real import gradient_dtype
from hvd_compress.errors import ConfigError, UnsupportedError

NEEDS = "FSDP2 with custom collectives, as of torch 2.13 and 2.15"


@dataclass(frozen=True)
class Shard:
    """A parameter's part of a group's reduced gradient.

    Attributes:
        name: of the parameter, in the root module.
        padded: shape of the part, equal on all ranks.
        owner: torch's FSDPParam.
    """

    name: str
    padded: tuple[int, ...]
    owner: Any

    @property
    def numel(self) -> int:
        return math.prod(self.padded)

    @property
    def parameter(self) -> torch.nn.Parameter:
        """The sharded parameter, a DTensor. Torch replaces it where a model is converted or loaded."""
        found: torch.nn.Parameter = self.owner.sharded_param
        return found

    @property
    def known(self) -> list[torch.nn.Parameter]:
        """The sharded parameter and, once there is one, the gathered one, which a module has in its place."""
        whole = getattr(self.owner, "_unsharded_param", None)
        return [self.parameter] if whole is None else [self.parameter, whole]

    @torch.no_grad()
    def local(self) -> torch.Tensor:
        """Return this rank's shard of the parameter, in its own memory."""
        found: torch.Tensor = self.parameter.to_local()  # type: ignore[attr-defined]
        return found

    def add(self, part: torch.Tensor, scale: float) -> None:
        """Add this rank's part (numel,) of a result, times `scale`, to the sharded gradient."""
        gradient: Any = self.parameter.grad
        if self.owner.grad_offload_event is not None:  # on its way to the host
            self.owner.grad_offload_event.synchronize()
        size = self.owner.sharded_size
        local = gradient.to_local()
        local.add_(part[: size.numel()].view(size).to(local), alpha=scale)


class ParamGroup:
    """Parameters whose gradients FSDP reduces at once: those of a module that fully_shard() or replicate() was given.

    Attributes:
        name: of the module in the root module.
        every: its parameters.
        shards: trainable parameters, in the order in which they lie in a reduced gradient; those of the last step, or
            of the one under way.
        dtype: in which it is reduced.
        device: where it lies.
        shard_group: the ranks that share a replica; None where each has all of it.
        replica_group: the ranks that have the same shard; None where there is only one replica.
    """

    def __init__(self, module: torch.nn.Module, name: str, raw: Any, names: dict[int, str]) -> None:
        self.module, self.name, self._raw = module, name or "the root module", raw
        self.every = [
            Shard(_name_of(each, names), tuple(each.padded_sharded_param_size), each) for each in raw.fsdp_params
        ]
        self.shards = self.trained
        trained = [shard.owner for shard in self.shards]
        self.device: torch.device = raw.device
        self._refuse_what_cannot_be(trained)
        self.dtype = _reduce_dtype(raw, trained)
        mesh = raw.mesh_info
        self.shard_group: dist.ProcessGroup | None = getattr(mesh, "shard_process_group", None)
        self.replica_group: dist.ProcessGroup | None = getattr(mesh, "replicate_process_group", None)

    @property
    def trained(self) -> list[Shard]:
        """What `shards` are to be in the coming step, as the program may freeze and unfreeze parameters."""
        return [shard for shard in self.every if shard.parameter.requires_grad]

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """Those that fully_shard() was given together."""
        found: tuple[torch.nn.Module, ...] = self._raw.modules
        return found

    @property
    def holders(self) -> list[torch.nn.Module]:
        """The modules within them that hold its parameters."""
        return list(dict.fromkeys(each._module_info.module for each in self._raw.fsdp_params))

    @property
    def ways(self) -> int:
        """Into how many shards its parameters are cut."""
        return self.shard_group.size() if self.shard_group is not None else 1

    @property
    def numel(self) -> int:
        """Of a reduced gradient, on each rank."""
        return sum(shard.numel for shard in self.shards)

    @property
    def gather_dtypes(self) -> list[torch.dtype]:
        """In which FSDP gathers its parameters, each once."""
        found = []
        for owner in self._raw.fsdp_params:
            own, asked = owner.sharded_param.dtype, owner.mp_policy.param_dtype
            found.append(asked if asked is not None and own.is_floating_point else own)
        return list(dict.fromkeys(found))

    @property
    def gather_dtype(self) -> torch.dtype:
        return self.gather_dtypes[0]

    @property
    def has_own_gather(self) -> bool:
        """Whether somebody has replaced FSDP's all-gather already."""
        return type(self._raw._all_gather_comm).__name__ != "DefaultAllGather"

    def install_gather(self, comm: Any) -> None:
        """Have FSDP gather its parameters by this torch.distributed.fsdp.AllGather."""
        module: Any = self.module
        module.set_custom_all_gather(comm)

    def scale(self, scatters: bool, ranks: int) -> float:
        """Return what averages are multiplied by for what FSDP itself would have made of the gradients.

        With set_gradient_divide_factor() that is their sum over all ranks, divided by the factor; and with
        set_force_sum_reduction_for_comms() FSDP sums shards, and divides after its all-reduce.

        Args:
            scatters: whether averages are of a reduce-scatter; else of replicas, of what FSDP has reduced.
            ranks: how many are averaged over.
        """
        factor, is_summed = self._raw.gradient_divide_factor, self._raw.force_sum_reduction_for_comms
        if scatters:
            return 1.0 if factor is None else ranks / factor
        found = 1.0 if factor is None else float(ranks)
        if not is_summed:
            return found
        return found / (self.ways if factor is None else factor)

    def take_over_replicas(self) -> None:
        """Have FSDP reduce over shards alone, so that its all-reduce hook comes in the place of its all-reduce."""
        raw = self._raw
        alone = _without_replicas(raw.mesh_info)
        if raw.post_forward_mesh_info == raw.mesh_info:
            raw.post_forward_mesh_info = alone
        raw.mesh_info = alone

    def wait(self) -> None:
        """Let the calling thread's stream wait for what FSDP does with the reduced gradient.

        FSDP's own end of a backward pass does, but not with set_is_last_backward(False).
        """
        if self._raw._post_reduce_event is not None:
            self._raw.device_handle.current_stream().wait_event(self._raw._post_reduce_event)

    def require_as_it_was(self, numel: int, dtype: torch.dtype) -> None:
        """Raise what keeps a gradient of this step from being the one that was expected.

        Raises:
            UnsupportedError: a setting of the model that was changed after compress().
            ConfigError: parameters without a gradient.
        """
        self._refuse_settings()
        for shard in self.shards:
            if getattr(shard.parameter, "_post_accumulate_grad_hooks", None):
                raise UnsupportedError(
                    f"{shard.name!r} has a post-accumulate-grad hook, as where an optimizer steps within the backward "
                    "pass, and compressed gradients are complete at its end: step the optimizer after backward()"
                )
        if dtype != self.dtype:
            raise UnsupportedError(
                f"gradients of {self.name} are reduced as {dtype}, and compress() has found {self.dtype}: convert the "
                "model before compress(), or say MixedPrecisionPolicy(reduce_dtype=...)"
            )
        if numel != self.numel:
            raise ConfigError(
                f"{numel} elements of {self.name} have a gradient in this step, and {self.numel} are trained: call "
                "set_reduce_scatter_unused_params(True) of the model where a step leaves parameters out"
            )

    def _refuse_what_cannot_be(self, trained: Sequence[Any]) -> None:
        self._refuse_settings()
        if any(each.is_dtensor for each in trained):
            raise UnsupportedError(
                f"{self.name} has parameters that are distributed over another mesh, too, as by tensor parallelism: "
                "only what FSDP alone has sharded is compressed"
            )

    def _refuse_settings(self) -> None:
        raw = self._raw
        if not raw.all_reduce_grads and raw.reduce_grads:
            raise UnsupportedError(
                "set_requires_all_reduce(False) would add shards that no replica has seen: accumulate with "
                "set_requires_gradient_sync(False)"
            )


def groups_of(model: torch.nn.Module, frozen: bool = False) -> list[ParamGroup]:
    """Return the groups with trainable parameters, or those without, if `frozen`.

    In the order in which a backward pass probably comes by them.

    Raises:
        ConfigError: parameters that are in no group, or one of a module that has several.
        UnsupportedError: this torch has no such FSDP2, or gradients cannot be compressed.
    """
    names = {id(module): name for name, module in model.named_modules()}
    groups, managed = [], set()
    for module, raw in _raw_groups(model):
        group = ParamGroup(module, names[id(module)], raw, names)
        managed |= {id(parameter) for shard in group.every for parameter in shard.known}
        if bool(group.shards) != frozen:
            groups.append(group)
    left = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in managed]
    if left:
        raise ConfigError(
            f"{len(left)} parameters are not sharded, {left[0]!r} first: call fully_shard() for the root module, too, "
            "behind its submodules, and freeze what it ignores"
        )
    return groups[::-1]


def is_in_backward(model: torch.nn.Module) -> bool:
    """Whether FSDP's own end of the backward pass of this root module is still to come."""
    found: bool = model._get_fsdp_state()._state_ctx.post_backward_final_callback_queued  # type: ignore[operator]
    return found


def _raw_groups(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, Any]]:
    from torch.distributed.fsdp import FSDPModule

    seen = set()
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        if not hasattr(state, "_fsdp_param_groups"):
            raise UnsupportedError(f"torch {torch.__version__} has no {NEEDS}: upgrade torch")
        if id(state) in seen:
            continue
        seen.add(id(state))
        if len(state._fsdp_param_groups) > 1:
            raise ConfigError(
                "shard_placement_fn gives parameters of one module several meshes, and its gradients one compression: "
                "give modules with another mesh a fully_shard() of their own"
            )
        for raw in state._fsdp_param_groups:
            yield module, raw


def _name_of(owner: Any, names: dict[int, str]) -> str:
    info = owner._module_info
    prefix = names[id(info.module)]
    return f"{prefix}.{info.param_name}" if prefix else str(info.param_name)


def _reduce_dtype(raw: Any, trained: Sequence[Any]) -> torch.dtype:
    if not trained:
        return torch.float32
    asked = {each.mp_policy.reduce_dtype for each in trained}
    own = {gradient_dtype(each.sharded_param) for each in trained}
    if len(own) > 1 or any(each.sharded_param.is_complex() for each in trained):
        raise UnsupportedError(
            f"parameters of one module have gradients of several dtypes, {', '.join(sorted(map(str, own)))}, or "
            "complex ones: call fully_shard() for modules of one dtype each"
        )
    found: torch.dtype = asked.pop() or own.pop()
    if found not in (torch.float32, torch.bfloat16):
        raise UnsupportedError(
            f"gradients are reduced as {found}: say MixedPrecisionPolicy(reduce_dtype=torch.float32) or bfloat16"
        )
    return found


def _without_replicas(mesh: Any) -> Any:
    from torch.distributed.fsdp._fully_shard import _fsdp_common as common

    kind = common.FSDPMeshInfo if isinstance(mesh, common.FSDPMeshInfo) else common.DataParallelMeshInfo
    known = {each.name: getattr(mesh, each.name) for each in fields(kind) if each.init}
    if kind is common.FSDPMeshInfo:
        known["replicate_mesh_dim"] = None
    return kind(**known)
