"""Compressed gradients in Lightning's Trainer, by a callback, and in Fabric.

Trainer(strategy="ddp", callbacks=[CompressGradients(Compression.auto())])

model, optimizer = fabric.setup(model, optimizer)
compression = compress(fabric, model, Compression.auto())
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress.ddp import Compression
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.extras import needed
from hvd_compress.frontends.ddp.refusals import check_compression
from hvd_compress.frontends.ddp.state import known_state
from hvd_compress.frontends.front_end import FrontEnd
from hvd_compress.frontends.launched import has_met
from hvd_compress.frontends.original import original_of
from hvd_compress.frontends.saving import gathered
from hvd_compress.local import LocalSteps
from hvd_compress.request.request import Request
from hvd_compress.warned import warn_caller

with needed("lightning", "hvd_compress.integrations.lightning"):
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError as error:
        if error.name != "lightning" or find_spec("pytorch_lightning") is None:
            raise
        from pytorch_lightning import Callback  # the same, in a package of its own

__all__ = ["CompressGradients", "Compression", "TakeLocalSteps", "compress"]

_FSDP = "under FSDP2 (ModelParallelStrategy), compress with hvd_compress.fsdp"


class CompressGradients(Callback):  # type: ignore[misc]  # mypy does not read Lightning
    """Compresses the gradients of a Trainer whose strategy is "ddp", in each fit().

    A second fit() of a module goes on with the residuals of the first. Checkpoints of the Trainer hold those of all
    ranks, which are gathered on rank 0, 4 bytes an element each, and fit(ckpt_path=...) goes on with them; weights-only
    checkpoints hold none. As Lightning wants it, all ranks call save_checkpoint(). What is saved after an exception,
    where other ranks may not come, holds the residuals of rank 0, and the others begin with zeros.

    The loss scale of precision="16-mixed" is followed. Compression.accordion() is told of learning rates, and of the
    end of each epoch. hvd_compress.of() takes `trainer.strategy.model` while fit() runs.

    Works with the packages lightning and pytorch_lightning. In one process with strategy="auto" it does nothing but
    warn; with "ddp" there is a DDP of one rank, whose gradients are compressed as on a cluster.

    Args:
        compression: what a function of `Compression` returns.
        log: whether the Trainer's loggers get metrics() of it on each logged step, as "compression/ratio".

    Raises:
        ConfigError: this is no compression; in fit(), the strategy is not that of DDP.
        UnsupportedError: the compression needs the optimizer of hvd_compress.torch; in fit(), as compress() does.
        UsageError: in fit(), the strategy has another communication hook, or the Trainer has two of this callback.
    """

    def __init__(self, compression: Request, log: bool = True) -> None:
        check_compression(compression)
        self.compression = compression
        self._wants_logs = log  # not `log`, as which Lightning sets that of the module
        self._model: Any = None  # while fit() runs
        self._kept: Mapping[str, Any] | None = None  # for the model of the next fit()
        self._kept_of: weakref.ref[Any] | None = None  # the module that was trained; None where it was loaded
        self._is_alone = False  # after an exception, of which other ranks may not know
        self._epoch_ended = self._begun_at = -1  # steps
        self._ends_later = False  # of the last epoch

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse what cannot be compressed, before anything is wrapped."""
        self._release()  # an earlier fit() may have failed
        if stage == "fit" and self._kept_of is not None and self._kept_of() is not pl_module:
            self._kept = self._kept_of = None  # another model loses something else
        self._is_alone = False
        if sum(isinstance(each, CompressGradients) for each in trainer.callbacks) > 1:
            raise UsageError(
                "the Trainer has two callbacks CompressGradients, and a model has one compression: pass one"
            )
        if stage == "fit" and getattr(trainer.strategy, "_ddp_comm_hook", None) is not None:
            raise UsageError(
                f"{type(trainer.strategy).__name__} has a ddp_comm_hook, and DDP takes one hook (on CPUs Lightning "
                "drops it without a word): leave out ddp_comm_hook=, or the callback CompressGradients"
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Compress the model, which DDP has wrapped."""
        model, strategy = trainer.strategy.model, type(trainer.strategy).__name__
        if trainer.world_size > 1 and not isinstance(original_of(model), DistributedDataParallel):
            raise ConfigError(
                f"CompressGradients compresses what DDP exchanges, and {strategy} does not wrap the model in it: pass "
                f'Trainer(strategy="ddp"); {_FSDP}'
            )
        hc.compress(model, self.compression)
        self._model, self._kept_of, self._epoch_ended, self._ends_later = model, weakref.ref(pl_module), -1, False
        if self._kept is not None:
            hc.load_state_dict(model, self._kept)
            self._kept = None
        _follow(model, trainer.precision_plugin)
        hc.of(model).follow(*trainer.optimizers)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """With manual optimization Lightning prepares DDP for each backward pass, not in the forward pass."""
        state = known_state(self._model)
        if state is not None and state.hook is not None and not pl_module.automatic_optimization:
            state.hook.require_working()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Have the relative error measured of a step that is logged."""
        self._begun_at = self._step
        if self._logs(trainer):
            hc.of(self._model).look()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Hand the figures of a step that is logged to the loggers."""
        if self._step == self._begun_at or not self._logs(trainer):
            return  # while gradients are accumulated nothing is exchanged
        found = hc.of(self._model).session.reporting.metrics()
        figures = {f"compression/{name}": value for name, value in found.items()}
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Tell Compression.accordion(), behind the schedulers of learning rates, and before a checkpoint is written.

        Lightning calls one that waits for a plateau after this: then the epoch ends when the next epoch begins.
        """
        if self._step > self._epoch_ended:  # an epoch may have no step
            self._epoch_ended, schedulers = self._step, trainer.lr_scheduler_configs
            self._ends_later = any(each.reduce_on_plateau and each.interval == "epoch" for each in schedulers)
            if not self._ends_later:
                hc.of(self._model).end_epoch()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell it of the end of the last one, where that was not told yet."""
        if self._ends_later:
            self._ends_later = False
            hc.of(self._model).end_epoch()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Callbacks that save a checkpoint now are called behind this one."""
        self._is_alone = True

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Keep what this rank remembers, as Lightning unwraps the model."""
        self._release()

    def state_dict(self) -> dict[str, Any]:
        """Return what the compression of all ranks remembers, on rank 0. Collective, but after an exception."""
        if self._model is not None:
            return hc.state_dict(self._model) if self._is_alone else hc.of(self._model).gathered_state_dict()
        if self._kept is None:
            return {}
        if self._is_alone or not has_met():
            return dict(self._kept)
        return gathered(self._kept, FrontEnd(dist.get_rank(), dist.get_world_size(), group=dist.group.WORLD))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what state_dict() returned on rank 0, on every rank the same, before or after the model is wrapped."""
        if self._model is None:
            self._kept, self._kept_of = state_dict, None
        else:
            hc.load_state_dict(self._model, state_dict)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Say so where load_state_dict() is not called, as a checkpoint has nothing for it."""
        if trainer.world_size > 1 and trainer.is_global_zero and self.state_key not in checkpoint["callbacks"]:
            warn_caller(
                "this checkpoint holds no residuals, as nothing was compressed when it was saved, or its ranks had "
                "ended (ddp_spawn, ddp_fork, ddp_notebook): residuals begin with zeros"
            )

    @property
    def _step(self) -> int:
        """The last step whose gradients were exchanged; -1 before the first."""
        report = hc.of(self._model).last_step
        return -1 if report is None else report.step

    def _logs(self, trainer: Any) -> bool:
        """Whether the step of the coming or last batch is logged, by this rank."""
        if not (self._wants_logs and trainer.is_global_zero and trainer.loggers):
            return False
        return bool(trainer._logger_connector.should_update_logs)

    def _release(self) -> None:
        if self._model is not None:
            self._kept, self._model = hc.state_dict(self._model), None


class TakeLocalSteps(Callback):  # type: ignore[misc]
    """Has the ranks of a Trainer whose strategy is "ddp" exchange what they have learned once in several steps.

    Ranks agree on the model before each validation, at the end of each epoch and of fit(): what is saved then is one
    model, with the optimizer's state of rank 0. A training that is resumed begins with a new round. What is saved at
    other times is the model of rank 0.

    Attributes:
        local: the LocalSteps of the last fit(); None before.

    Args:
        options: `every`, `compression` and all others, as hvd_compress.local.LocalSteps takes them.

    Raises:
        ConfigError: in fit(), the strategy is not that of DDP, there are several optimizers, or an option is wrong.
        UnsupportedError: in fit(), the module has manual optimization.
        UsageError: in fit(), gradients are compressed, too.
    """

    def __init__(self, **options: Any) -> None:
        self.options: dict[str, Any] = options
        self.local: LocalSteps | None = None
        self._agreed_after = -1  # steps

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """An earlier fit() is over."""
        if stage == "fit":
            self.local, self._agreed_after = None, -1
            if not pl_module.automatic_optimization:
                raise UnsupportedError("with manual optimization Lightning has DDP exchange gradients in each pass")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin, with the model that DDP has wrapped."""
        if len(trainer.optimizers) != 1:
            raise ConfigError(f"local steps are those of one optimizer, and the module has {len(trainer.optimizers)}")
        self.local = hc.local_steps(trainer.strategy.model, trainer.optimizers[0], **self.options)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Agree on what is validated, and then saved."""
        self._agree(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Agree on what is saved."""
        self._agree(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Agree on what the module is from now on."""
        self._agree(trainer)

    def _agree(self, trainer: Any) -> None:
        # A sanity check comes before the first step; and what was saved is what the end is to leave.
        if self.local is not None and self._agreed_after != trainer.global_step:
            self.local.finish()
            self._agreed_after = trainer.global_step


class SavedCompression:
    """What Fabric saves and loads of a model's compression: residuals of all ranks, in one file."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Return what the compression of all ranks remembers, on rank 0. Collective."""
        return hc.of(self._model).gathered_state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load that, on every rank the same."""
        hc.of(self._model).load_gathered_state_dict(state_dict)


def compress(fabric: Any, model: Any, compression: Request) -> SavedCompression:
    """Send the gradients of a model that `fabric.setup()` returned compressed, from its next backward pass on.

    As compress() of hvd_compress.ddp; hvd_compress.of() takes this model. The loss scale of precision="16-mixed" is
    followed.

    Args:
        fabric: a lightning.fabric.Fabric with strategy="ddp".
        model: what its setup() or setup_module() returned.
        compression: what a function of `Compression` returns.

    Returns:
        What goes into the state of fabric.save() and fabric.load(), beside the model: {"model": model, "optimizer":
        optimizer, "compression": compression}. All ranks call both, as Fabric wants it.

    Raises:
        ConfigError: the model was not set up, the strategy is not that of DDP, or this is no compression.
        UsageError, UnsupportedError: as compress() of hvd_compress.ddp.
    """
    check_compression(compression)
    if not hasattr(model, "_forward_module"):
        raise ConfigError(
            f"this {type(model).__name__} was not set up: model, optimizer = fabric.setup(model, optimizer), then "
            "compress(fabric, model, ...)"
        )
    if fabric.world_size > 1 and not isinstance(original_of(model), DistributedDataParallel):
        raise ConfigError(
            f"compress() compresses what DDP exchanges, and {type(fabric.strategy).__name__} does not wrap the model "
            f'in it: pass Fabric(strategy="ddp"); {_FSDP}'
        )
    hc.compress(model, compression)
    _follow(model, fabric.strategy.precision)
    return SavedCompression(model)


def _follow(model: Any, precision: Any) -> None:
    """Follow the loss scale of a precision plugin that has one."""
    scaler = getattr(precision, "scaler", None)
    if scaler is not None:
        hc.of(model).follow_loss_scale(scaler)
