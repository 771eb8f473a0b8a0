"""What a program calls: compression of a DDP model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hvd_compress import compression
from hvd_compress.compressors import Cast
from hvd_compress.errors import UsageError
from hvd_compress.frontends.ddp.local import takes_local_steps
from hvd_compress.frontends.ddp.refusals import check_compression, check_model, trains_alone
from hvd_compress.frontends.ddp.state import CompressionState, exchange, known_state
from hvd_compress.frontends.original import original_of
from hvd_compress.request.request import Request
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
    so, and of() and all functions of this module take the model, so that one script serves a laptop and a cluster.

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
    if takes_local_steps(wrapped):
        raise UsageError(
            "this model takes local steps, between which no gradients are exchanged: pass compression= to local_steps()"
        )
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
