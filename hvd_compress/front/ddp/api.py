"""What a program calls: compression of a DDP model, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_compress import compression
from hvd_compress.compressors import Cast
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.front.ddp.refusals import check_compression, check_model, trains_alone
from hvd_compress.front.ddp.state import CompressionState, exchange, known_state, state_of
from hvd_compress.front.handle import Handle
from hvd_compress.front.optimizers import trains
from hvd_compress.front.original import original_of
from hvd_compress.front.saving import gathered
from hvd_compress.policies import DecisionPolicy
from hvd_compress.policies.ccr import Ccr
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request
from hvd_compress.session import checkpoint
from hvd_compress.session.report import StepReport
from hvd_compress.settings import DEFAULT_CCR_STEPS
from hvd_compress.warned import warn_caller


class Compression(compression.Compression):
    """What to pass to `compress`. `none` sends every element as it is, and `fp16` as float16."""

    none = Request(Cast())
    fp16 = Request(Cast(torch.float16))


def compress(model: DistributedDataParallel, compression: Request) -> DistributedDataParallel:
    """Send the gradients of a DDP model compressed, from its next backward pass on.

    Registers DDP's communication hook. Call it on every rank, after the model was wrapped; a second call with the same
    compression does nothing. Nothing is communicated before the first backward pass, in which ranks compare their
    settings. DDP's own features work as without it: no_sync(), static_graph, find_unused_parameters,
    gradient_as_bucket_view, join(), which always divides by the number of ranks that began.

    In one process without torchrun or mpirun the model need not be wrapped: nothing is compressed then, a warning says
    so, and all functions of this module take the model, so that one script serves a laptop and a cluster.

    A module that is wrapped and compressed again is the new model's, and the old one refuses to run. All processes of
    the job compress as many models, also where a model belongs to some of them: torch counts process groups in their
    names. Each model has process groups of its own, among hosts three; a model that is dropped, or wrapped anew, leaves
    them to later ones. After an error in an exchange the model's next forward pass raises CommunicationError, and after
    a conversion of its parameters, which DDP does not see, UsageError.

    Args:
        model: wrapped in DistributedDataParallel, over gloo, nccl or mpi; also what torch.compile makes of that.
        compression: what a function of `Compression` returns. Its `engine` is "torch" by default; "mpi" and "horovod"
            take a job that one of them started, with the same ranks.

    Returns:
        The model itself.

    Raises:
        ConfigError: the model is not wrapped, or this is no compression; parameters are not where it wants them.
        UsageError: the model is compressed otherwise, or has another communication hook.
        UnsupportedError: sparse gradients, a compression that needs the optimizer of hvd_compress.torch, or a DDP that
            torch.compile traces (optimize_ddp="python_reducer").
    """
    check_compression(compression)
    known = known_state(model)
    if known is not None:
        if known.compression != compression:
            raise UsageError(
                f"this model is compressed already, by {known.compression}: wrap the module anew to change that"
            )
        return model
    state, wrapped = CompressionState(compression), original_of(model)
    if trains_alone(wrapped):
        warn_caller(
            "there is one process, so no gradients are exchanged and none are compressed: to have several, launch the "
            "program with torchrun, and wrap the model in DistributedDataParallel where no library does"
        )
        state.attach_alone(wrapped)
        return model
    check_model(wrapped)
    state.register(wrapped)
    return model


def hook(compression: Request) -> tuple[CompressionState, Callable[..., Any]]:
    """Return a pair (state, hook) for code that takes nothing else: `model.register_comm_hook(*hook(int4()))`.

    As compress(), but for what that refuses at once: it is refused in the first backward pass. The state can be
    pickled: the copy goes on with what this rank remembered. Each model needs a pair of its own.

    Raises:
        ConfigError: this is no compression.
        UnsupportedError: it needs the optimizer of hvd_compress.torch.
    """
    check_compression(compression)
    return CompressionState(compression), exchange


def last_step(model: DistributedDataParallel) -> StepReport | None:
    """Return the report of the last exchange; None before the first. Raises UsageError for other models."""
    return handle_of(model).last_step


def decisions(model: DistributedDataParallel) -> Mapping[tuple[str, ...], Decision]:
    """Return how each bucket travels in the next step, by the names of its parameters; empty before the first."""
    return handle_of(model).decisions


def controller(model: DistributedDataParallel) -> DecisionPolicy | None:
    """Return what chooses while training, with its `history`; None where nothing is to choose."""
    return handle_of(model).controller


def state_dict(model: DistributedDataParallel) -> dict[str, Any]:
    """Return what this rank's compression remembers: residuals and compressors' states, by parameter name.

    Nothing is communicated. Residuals differ from rank to rank: save one file a rank to keep them all.
    """
    return state_of(model).state_dict()


def load_state_dict(model: DistributedDataParallel, state: Mapping[str, Any]) -> None:
    """Load what state_dict() gave. Nothing is communicated.

    Residuals come back only on the rank that saved them, in a job of the same size; elsewhere they start from zero,
    with a warning: another rank's residual would be applied twice.

    Raises:
        ConfigError: it is not such a state, or of unknown parameters or other lengths.
        UsageError: the model is not compressed.
    """
    state_of(model).load_state_dict(model, state)


def gathered_state_dict(model: DistributedDataParallel) -> dict[str, Any]:
    """Return on rank 0 what the compression of all ranks remembers, for what saves one file. Collective.

    Rank 0 of the model's process group gets as many residuals as there are ranks, 4 bytes an element each; the others
    get their own, as state_dict() returns it.

    Raises CommunicationError where not all ranks call it within HVD_COMPRESS_TIMEOUT_S.
    """
    state = state_of(model)
    own = state.state_dict()
    return own if state.hook is None else gathered(own, original_of(model).process_group, state.hook.session)


def load_gathered_state_dict(model: DistributedDataParallel, state: Mapping[str, Any]) -> None:
    """Load what gathered_state_dict() gave on rank 0, on every rank the same. Nothing is communicated.

    Each rank takes its own residual. In a job of another size each begins with the mean over the ranks that saved, so
    that the average of all gradients gets what they had not sent.

    Raises:
        ConfigError: as load_state_dict(), and where the state is not that of all ranks.
        UsageError: the model is not compressed.
    """
    known = state_of(model)
    checkpoint.require_all_ranks(state)
    known.load_state_dict(model, state)


def ccr(model: DistributedDataParallel) -> Ccr | None:
    """Return the communication-to-computation ratio that was profiled last; None before."""
    return handle_of(model).ccr


def gather_figures(model: DistributedDataParallel, figures: Sequence[float]) -> list[list[float]]:
    """Return the figures of all ranks, in their order: for what all are to decide alike. All ranks bring as many.

    Between two steps. Raises UsageError before the first one.
    """
    state = state_of(model)
    return (
        [[float(each) for each in figures]] if state.hook is None else handle_of(model).session.gather_figures(figures)
    )


def drop_step(model: DistributedDataParallel) -> None:
    """Forget what the last exchange has left in residuals and compressors' states: its result is not used.

    Call it where a step is left out, on every rank, before the next backward pass. Nothing is communicated. It reaches
    one exchange back. In a program that otherwise steps by each result it is seen without this call, where
    gradients are None or zero when the next ones come, and no parameter has moved until those leave.

    Raises UsageError within a backward pass.
    """
    handle_of(model).session.drop_step()


def end_epoch(model: DistributedDataParallel) -> None:
    """An epoch is over, for Compression.accordion() without epoch_steps; for others it does nothing.

    All ranks call it, between two steps.
    Behind the step of a learning-rate scheduler: the rates of the coming epoch count (follow_learning_rate()).
    """
    handle_of(model).session.end_epoch()


def follow_learning_rate(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Let Compression.accordion() see the learning rates of the optimizer that trains this model, on every rank.

    Raises ConfigError for what is no optimizer, or that of another model; or where it has a momentum of its own and the
    compression has one, too, as momentum(), demo() and dgc().
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"a {type(optimizer).__name__} has no learning rates: pass the optimizer, not its scheduler")
    if not trains(optimizer, model):
        raise ConfigError(f"this {type(optimizer).__name__} has no parameter of this model: pass that which trains it")
    handle_of(model).follow(optimizer)


def profile_ccr(model: DistributedDataParallel, steps: int = DEFAULT_CCR_STEPS) -> None:
    """Have the communication-to-computation ratio profiled by the coming steps, for ccr(). All ranks call it.

    In these steps exchanges begin when the backward pass is over.

    Raises ConfigError where `steps` is no number of steps.
    """
    handle_of(model).profile_ccr(steps)


def save_plan(model: DistributedDataParallel, path: str | Path) -> None:
    """Write how buckets travel now to a file, so that Compression.plan(path) lets another run do the same.

    Nothing is communicated, and all ranks would write the same: call it on one.

    Raises:
        UsageError: before the first exchange, or where buckets are skipped in the coming step; the model is not
            compressed.
        PlanError: the file cannot be written.
    """
    handle_of(model).save_plan(path)


def follow_loss_scale(model: DistributedDataParallel, scaler: Any) -> None:
    """Keep residuals in the units of a torch.amp.GradScaler: when its scale changes, they are rescaled with it."""
    handle_of(model).follow_loss_scale(scaler)


def handle_of(model: torch.nn.Module) -> Handle:
    """Return what is asked of a compressed model. Raises UsageError for others."""
    handle = state_of(model).handle
    assert handle is not None
    return handle
