"""Accelerate: `compress(accelerator, model, Compression.auto())` for what `accelerator.prepare()` has wrapped."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_compress import ddp
from hvd_compress.ddp import Compression
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.extras import needed
from hvd_compress.front.ddp.refusals import trains_alone
from hvd_compress.front.ddp.state import inner
from hvd_compress.front.original import original_of
from hvd_compress.request.request import Request

with needed("accelerate", "hvd_compress.integrations.accelerate"):
    from accelerate import Accelerator
    from accelerate.utils import DistributedType, broadcast_object_list, gather_object

__all__ = ["Compression", "compress"]

_OTHERS = {
    DistributedType.FSDP: (
        "FSDP exchanges gradients without DDP's hook: train without a FullyShardedDataParallelPlugin and fsdp=, or, "
        "with fsdp_version=2, call compress() of hvd_compress.fsdp for the prepared model"
    ),
    DistributedType.DEEPSPEED: (
        "DeepSpeed exchanges gradients by itself: train without a DeepSpeedPlugin, deepspeed= and --use_deepspeed, so "
        "that the model is wrapped in DistributedDataParallel"
    ),
    DistributedType.MEGATRON_LM: "Megatron-LM exchanges gradients by itself: train without a MegatronLMPlugin",
    DistributedType.XLA: "on TPUs XLA exchanges gradients, without DDP's hook",
}
"""Why nothing is compressed where Accelerate does not wrap the model in DDP, and what to do."""


def compress(accelerator: Accelerator, model: DistributedDataParallel, compression: Request) -> DistributedDataParallel:
    """Send the gradients of a prepared model compressed, and keep the residuals in Accelerate's checkpoints.

    As hvd_compress.ddp.compress(), whose other functions take the model, too; behind accelerator.prepare(), on every
    rank. Beyond that, residuals follow the loss scale of mixed_precision="fp16", and accelerator.save_state() writes
    what all ranks remember into one of its files `custom_checkpoint_N.pkl`, from which accelerator.load_state() gives
    each rank its own: call this before load_state(). A job of another size begins with the mean over ranks.

    Args:
        accelerator: that has prepared the model.
        model: what accelerator.prepare() returned; compiled as well.
        compression: what a function of `Compression` returns.

    Returns:
        The model itself.

    Raises:
        ConfigError: the model was not prepared, or what hvd_compress.ddp.compress() raises.
        UsageError: the model is compressed otherwise, or DistributedDataParallelKwargs has a comm_hook.
        UnsupportedError: FSDP, DeepSpeed, Megatron-LM or XLA exchange gradients, or what
            hvd_compress.ddp.compress() raises.
    """
    if not isinstance(accelerator, Accelerator):
        raise ConfigError(
            f"compress() takes the accelerator first, and this is a {type(accelerator).__name__}: "
            "compress(accelerator, model, ...)"
        )
    require_wrapped(accelerator, model, "call compress() with what accelerator.prepare(model, ...) returned")
    ddp.compress(model, compression)
    if accelerator.scaler is not None:
        ddp.follow_loss_scale(model, accelerator.scaler)
    _register(accelerator, model)
    return model


def require_wrapped(accelerator: Accelerator, model: torch.nn.Module, remedy: str) -> None:
    """Raise what keeps Accelerate's model from being compressed, and what to do.

    Args:
        remedy: how to come by a model that is wrapped, in words.
    """
    if accelerator.distributed_type in _OTHERS:
        raise UnsupportedError(_OTHERS[accelerator.distributed_type])
    handler = accelerator.ddp_handler
    if handler is not None and str(handler.comm_hook) != "no":
        raise UsageError(
            f"DistributedDataParallelKwargs(comm_hook={handler.comm_hook!r}) asks for another communication hook, and "
            "DDP takes one: leave comm_hook out"
        )
    wrapped = original_of(model)
    if isinstance(wrapped, DistributedDataParallel) or trains_alone(wrapped):
        return
    if accelerator.distributed_type == DistributedType.NO and isinstance(wrapped, torch.nn.Module):
        raise ConfigError(
            "Accelerate sees one process where several were launched, and each would train by itself: without GPUs it "
            "wants Accelerator(cpu=True), TrainingArguments(use_cpu=True) or `accelerate launch --cpu`"
        )
    raise ConfigError(
        f"Accelerate has not wrapped this {type(wrapped).__name__} in DistributedDataParallel, and each rank would "
        f"train by itself: {remedy}"
    )


class Residuals:
    """What compression remembers on all ranks, as accelerator.register_for_checkpointing() takes it."""

    def __init__(self, accelerator: Accelerator, model: torch.nn.Module) -> None:
        self._accelerator = accelerator
        self.take(model)

    def take(self, model: torch.nn.Module) -> None:
        """Keep the residuals of this model from now on."""
        self._model, self._module = weakref.ref(model), weakref.ref(inner(model))  # free_memory() is to free both

    def trains(self, module: torch.nn.Module) -> bool:
        """Whether they are those of the wrapped module."""
        return self._module() is module

    @property
    def free(self) -> bool:
        """Whether accelerator.free_memory() has let the module go: the same on all ranks, whatever is collected."""
        return all(not self.trains(each) for each in self._accelerator._models)

    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks remember, complete where Accelerate writes it. Collective."""
        return complete_state(self._required(), self._accelerator.project_configuration.save_on_each_node)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what state_dict() returned, as hvd_compress.ddp.load_gathered_state_dict()."""
        ddp.load_gathered_state_dict(self._required(), state)

    def _required(self) -> Any:
        model = self._model()
        if model is None:
            raise UsageError(
                "the compressed model is gone, and its residuals with it: call compress(accelerator, model, ...) for "
                "the new one, behind accelerator.prepare()"
            )
        return model


def complete_state(model: Any, on_each_host: bool) -> dict[str, Any]:
    """Return what all ranks remember: on rank 0, or on every rank where each host writes a file. Collective."""
    state = ddp.gathered_state_dict(model)
    if on_each_host:
        (state,) = broadcast_object_list([state])
    return state


def of_all_ranks(value: Any) -> list[Any]:
    """Return the values of all ranks, in their order. Collective."""
    gathered: list[Any] = gather_object([value])
    return gathered


def _register(accelerator: Accelerator, model: torch.nn.Module) -> None:
    """Keep the residuals in the file of the same module or of one that is gone, or else in one more."""
    kept = [each for each in accelerator._custom_objects if isinstance(each, Residuals)]
    own = [each for each in kept if each.trains(inner(model))] or [each for each in kept if each.free]
    if own:
        own[0].take(model)
    else:
        accelerator.register_for_checkpointing(Residuals(accelerator, model))
