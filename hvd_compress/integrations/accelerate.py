"""Accelerate: `compress(accelerator, model, Compression.auto())` for what `accelerator.prepare()` has wrapped."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_compress import ddp
from hvd_compress.ddp import Compression
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.extras import needed
from hvd_compress.frontends.ddp.refusals import trains_alone
from hvd_compress.frontends.ddp.state import inner
from hvd_compress.frontends.optimizers import trains
from hvd_compress.frontends.original import original_of
from hvd_compress.integrations import files
from hvd_compress.request.request import Request

with needed("accelerate", "hvd_compress.integrations.accelerate"):
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

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
_residuals: weakref.WeakKeyDictionary[Accelerator, Residuals] = weakref.WeakKeyDictionary()


def compress(accelerator: Accelerator, model: DistributedDataParallel, compression: Request) -> DistributedDataParallel:
    """Send the gradients of a prepared model compressed, and keep the residuals in Accelerate's checkpoints.

    As hvd_compress.ddp.compress(); behind accelerator.prepare(), on every
    rank. Beyond that, residuals follow the loss scale of mixed_precision="fp16", and on each rank that calls it
    accelerator.save_state() writes what that rank remembers to a file `hvd_compress_N_RANK.pt`, from which
    accelerator.load_state() gives each rank its own: call this before load_state(). A job of another size begins with
    the mean over ranks.

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
        ddp.of(model).follow_loss_scale(accelerator.scaler)
    if accelerator not in _residuals:
        _residuals[accelerator] = Residuals(accelerator)
    _residuals[accelerator].keep(model)
    parameters = list(model.parameters())
    ddp.of(model).follow(*(each for each in accelerator._optimizers if trains(each, parameters)))
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
    """What compression remembers of the models of an accelerator, as a file a rank and model in its checkpoints."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._of = weakref.ref(accelerator)
        self._kept: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []  # free_memory() is to free both
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)

    def keep(self, model: torch.nn.Module) -> None:
        """Keep those of this model, in the file of the same module or of one that is gone, or else in one more."""
        accelerator, module = self._of(), inner(model)
        assert accelerator is not None
        trained = accelerator._models  # the same on all ranks, whatever is collected
        own = [at for at, (_, known) in enumerate(self._kept) if known() is module]
        free = [at for at, (_, known) in enumerate(self._kept) if not any(inner(each) is known() for each in trained)]
        kept = weakref.ref(model), weakref.ref(module)
        if own or free:
            self._kept[(own or free)[0]] = kept
        else:
            self._kept.append(kept)

    def _save(self, _models: Any, _weights: Any, folder: str) -> None:
        for prefix, model in self._models():
            files.save(model, folder, prefix)

    def _load(self, _models: Any, folder: str) -> None:
        for prefix, model in self._models():
            files.load(model, folder, prefix)

    def _models(self) -> Iterator[tuple[str, Any]]:
        for number, (known, _) in enumerate(self._kept):
            model = known()
            if model is None:
                raise UsageError(
                    "the compressed model is gone, and its residuals with it: call compress(accelerator, model, ...) "
                    "for the new one, behind accelerator.prepare()"
                )
            yield f"hvd_compress_{number}", model
