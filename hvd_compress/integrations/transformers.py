"""transformers: `Trainer(..., callbacks=[CompressGradients(Compression.auto())])`."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from hvd_compress import ddp
from hvd_compress import metrics as metrics_of
from hvd_compress.ddp import Compression
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.extras import needed
from hvd_compress.front.ddp.refusals import check_compression
from hvd_compress.request.request import Request
from hvd_compress.warned import warn_caller

with needed("transformers.trainer", "hvd_compress.integrations.transformers"):
    from transformers import Trainer, TrainerCallback

from hvd_compress.integrations.accelerate import complete_state, of_all_ranks, require_wrapped

__all__ = ["CompressGradients", "Compression"]

FILE = "hvd_compress.pt"
"""In a checkpoint of Trainer: what compression remembers on all ranks."""

_NOT_WRAPPED = (
    "Trainer does not wrap a model that evaluate() or predict() has prepared before train(): call them after it, or "
    "have TrainingArguments(eval_on_start=True) evaluate first; nor one that transformers has sharded as it was loaded"
)


class CompressGradients(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Sends the gradients of a Trainer compressed, and keeps the residuals of all ranks in its checkpoints.

    The model is compressed when train() begins, as by hvd_compress.ddp.compress(), whose other functions take
    `trainer.model_wrapped`. Residuals follow the loss scale of fp16=True, Compression.accordion() the learning rate and
    the epochs. Rank 0 writes what all ranks remember to `checkpoint-N/hvd_compress.pt`, but with save_only_model=True;
    train(resume_from_checkpoint=...) gives each rank its own, and in a job of another size the mean over ranks. What
    Trainer logs with a loss gets the figures of hvd_compress.metrics(), as "compression/ratio".

    In one process nothing is compressed, and a warning says so.

    Args:
        compression: what a function of `Compression` returns.
        log: whether figures are logged. Each time, measuring an error takes three passes over gradients on rank 0.

    Raises:
        ConfigError: this is no compression; in train(), Trainer has not wrapped the model in DistributedDataParallel.
        UnsupportedError: the compression needs the optimizer of hvd_compress.torch; in train(), fsdp= or deepspeed=, or
            as compress() of hvd_compress.ddp.
        UsageError: in train(), the model is compressed otherwise, or DistributedDataParallelKwargs has a comm_hook.
    """

    def __init__(self, compression: Request, log: bool = True) -> None:
        check_compression(compression)
        self.compression = compression
        self.log = log
        self._model: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        trainer, checkpoint = _training_loop()
        model, accelerator = trainer.model_wrapped, trainer.accelerator
        require_wrapped(accelerator, model, _NOT_WRAPPED)
        self._model = ddp.compress(model, self.compression)
        ddp.follow_learning_rate(model, trainer.optimizer)
        if accelerator.scaler is not None:
            ddp.follow_loss_scale(model, accelerator.scaler)
        if checkpoint is not None:
            _load(model, os.path.join(checkpoint, FILE))
        others = [each for each in trainer.callback_handler.callbacks if each is not self]
        trainer.callback_handler.callbacks = [self, *others]  # loggers come first else, and would not see what we log

    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        ddp.end_epoch(self._model)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **parts: Any) -> None:
        if self.log and state.is_world_process_zero and "loss" in logs:
            figures = {f"compression/{name}": each for name, each in metrics_of(self._model).items() if name != "step"}
            logs.update(figures)
            state.log_history[-1].update(figures)

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if args.save_only_model:
            return
        remembered = complete_state(self._model, args.save_on_each_node)
        if args.should_save and not state.is_hyper_param_search:  # each trial has a folder, and begins anew
            torch.save(remembered, os.path.join(args.output_dir, f"checkpoint-{state.global_step}", FILE))


def _training_loop() -> tuple[Trainer, str | None]:
    """Return the Trainer that has called its callback, and the folder of the checkpoint that it resumes from.

    transformers 5.24 hands neither to callbacks, and keeps the folder nowhere but in its loop: so from the stack.
    """
    frame = sys._getframe()
    while frame is not None:
        if "resume_from_checkpoint" in frame.f_code.co_varnames and isinstance(frame.f_locals.get("self"), Trainer):
            return frame.f_locals["self"], frame.f_locals["resume_from_checkpoint"]
        frame = frame.f_back  # type: ignore[assignment]
    raise UnsupportedError(
        "CompressGradients is a callback of transformers.Trainer, and no Trainer has called it: pass it as "
        "Trainer(callbacks=[CompressGradients(...)]), with transformers 5.20 to 5.24"
    )


def _read(path: str) -> tuple[dict[str, Any], str]:
    """Return what is in a file, and why it cannot be read, or nothing."""
    try:
        return torch.load(path, weights_only=True), ""
    except Exception as error:  # of many kinds, where a file is cut or of something else
        return {}, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'without words'}"


def _load(model: Any, path: str) -> None:
    """Load residuals on all ranks or on none, so that all begin with the same step, and none waits for another."""
    saved, obstacle = _read(path) if os.path.isfile(path) else ({}, "")
    found, obstacles = zip(*of_all_ranks((os.path.isfile(path), obstacle)), strict=True)
    if any(obstacles):
        rank = next(rank for rank, each in enumerate(obstacles) if each)
        raise ConfigError(
            f"{path} cannot be read on rank {rank}: {obstacles[rank]}; resume from another checkpoint, or remove this "
            "file, on every host, so that residuals begin with zeros"
        )
    if all(found):
        ddp.load_gathered_state_dict(model, saved)
    elif any(found):
        raise ConfigError(
            f"{path} is there on rank {found.index(True)} but not on rank {found.index(False)}: save with "
            "save_on_each_node=True, or resume from a folder that all hosts share"
        )
    else:
        warn_caller(f"there is no {path}, as nothing was compressed when it was saved: residuals begin with zeros")
