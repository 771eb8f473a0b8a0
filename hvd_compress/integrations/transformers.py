"""transformers: `Trainer(..., callbacks=[CompressGradients(Compression.auto())])`."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from hvd_compress import ddp
from hvd_compress.ddp import Compression
from hvd_compress.errors import UnsupportedError
from hvd_compress.extras import needed
from hvd_compress.frontends.ddp.refusals import check_compression
from hvd_compress.local import LocalSteps
from hvd_compress.request.request import Request

with needed("transformers.trainer", "hvd_compress.integrations.transformers"):
    from transformers import Trainer, TrainerCallback

from hvd_compress.integrations import files
from hvd_compress.integrations.accelerate import require_wrapped

__all__ = ["CompressGradients", "Compression", "TakeLocalSteps"]

_NOT_WRAPPED = (
    "Trainer does not wrap a model that evaluate() or predict() has prepared before train(): call them after it, or "
    "have TrainingArguments(eval_on_start=True) evaluate first; nor one that transformers has sharded as it was loaded"
)


class CompressGradients(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Sends the gradients of a Trainer compressed, and keeps the residuals of all ranks in its checkpoints.

    The model is compressed when train() begins, as by hvd_compress.ddp.compress(); hvd_compress.of() takes
    `trainer.model_wrapped`. Residuals follow the loss scale of fp16=True, Compression.accordion() the learning rate and
    the epochs. Each rank writes what it remembers to `checkpoint-N/hvd_compress_RANK.pt`, but with
    save_only_model=True; train(resume_from_checkpoint=...) gives each rank its own, and in a job of another size the
    mean over ranks. What Trainer logs with a loss gets the figures of metrics(), as "compression/ratio".

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
        self._ends_later = False  # of the last epoch

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._ends_later = False
        trainer, checkpoint = _training_loop()
        model, accelerator = trainer.model_wrapped, trainer.accelerator
        require_wrapped(accelerator, model, _NOT_WRAPPED)
        self._model = ddp.compress(model, self.compression)
        handle = ddp.of(model)
        handle.follow_learning_rate(trainer.optimizer)
        if accelerator.scaler is not None:
            handle.follow_loss_scale(accelerator.scaler)
        if checkpoint is not None:
            files.load(model, checkpoint)
        others = [each for each in trainer.callback_handler.callbacks if each is not self]
        trainer.callback_handler.callbacks = [self, *others]  # loggers come first else, and would not see what we log

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self._ends_later:
            self._ends_later = False
            ddp.of(self._model).end_epoch()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        # A scheduler that waits for a plateau is called when Trainer evaluates, after this.
        self._ends_later = isinstance(parts["lr_scheduler"], ReduceLROnPlateau)
        if not self._ends_later:
            ddp.of(self._model).end_epoch()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **parts: Any) -> None:
        if self.log and state.is_world_process_zero and "loss" in logs:
            figures = {
                f"compression/{name}": each for name, each in ddp.of(self._model).metrics().items() if name != "step"
            }
            logs.update(figures)
            state.log_history[-1].update(figures)

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if not args.save_only_model and not state.is_hyper_param_search:  # each trial has a folder, and begins anew
            files.save(self._model, os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))


class TakeLocalSteps(TrainerCallback):  # type: ignore[misc]
    """Has the ranks of a Trainer exchange what they have learned once in several steps, not gradients in each.

    Ranks agree on the model where Trainer evaluates or saves it, and at the end: a checkpoint is one model, with the
    optimizer's state of rank 0. A training that is resumed begins with a new round.

    Attributes:
        local: the LocalSteps of the last train(); None before.

    Args:
        options: `every`, `compression` and all others, as hvd_compress.local.LocalSteps takes them.

    Raises:
        ConfigError: in train(), Trainer has not wrapped the model in DistributedDataParallel, or an option is wrong.
        UsageError: in train(), gradients are compressed, too.
    """

    def __init__(self, **options: Any) -> None:
        self.options: dict[str, Any] = options
        self.local: LocalSteps | None = None
        self._of: tuple[Any, ...] = ()
        self._agreed_after = -1  # steps

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        trainer, _ = _training_loop()
        require_wrapped(trainer.accelerator, trainer.model_wrapped, _NOT_WRAPPED)
        self._agreed_after = -1
        trained = trainer.model_wrapped, trainer.optimizer
        if self._of != trained:  # else a second train() goes on
            self.local, self._of = ddp.local_steps(*trained, **self.options), trained

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._agree(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._agree(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._agree(state)

    def _agree(self, state: Any) -> None:
        assert self.local is not None
        if self._agreed_after != state.global_step:  # else what was saved would differ from what the end leaves
            self.local.finish()
            self._agreed_after = state.global_step


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
        "this is a callback of transformers.Trainer, and no Trainer has called it: pass it as "
        "Trainer(callbacks=[...]), with transformers 5.20 to 5.24"
    )
