"""What a request means for sharded gradients, and which have no meaning."""

from __future__ import annotations

from dataclasses import replace

from hvd_compress.collectives import ReduceScatter
from hvd_compress.compressors import Compressor
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.policies.reduce_scatter import ReduceScattered
from hvd_compress.request.request import Request

CARRIED = "int8(), int4(), int3(), int2(), natural(), bf16() or dense()"


def for_replicas(request: Request, feedback: bool) -> Request:
    """Return what is asked for of shards that replicas average: the request itself, with its error feedback.

    Raises UnsupportedError, ConfigError for what makes no sense there.
    """
    _check_engine(request)
    if feedback:
        raise ConfigError(
            "feedback= says whether a reduce-scatter remembers what it loses, and among replicas the compression does: "
            "leave it out"
        )
    if request.compressor.sends_momentum:
        raise UnsupportedError(
            f"{type(request.compressor).__name__} sends a momentum, for an optimizer that keeps none of its own on "
            "whole parameters, and these are sharded: take a compression of gradients, such as int4()"
        )
    if request.policy is not None and not request.policy.takes_shards:
        raise UnsupportedError(
            f"{type(request.policy).__name__} decides by parameters that are whole on each rank, and these are "
            "sharded: take auto(), or a compression without a policy, such as int4()"
        )
    return request


def for_shards(request: Request, feedback: bool) -> Request:
    """Return what is asked for of a reduce-scatter: without error feedback, unless it is asked for.

    Raises UnsupportedError for what no reduce-scatter carries, ConfigError for contradictions.
    """
    _check_engine(request)
    compressor = request.compressor
    named = type(compressor).__name__ if request.policy is None else type(request.policy).__name__
    if request.policy is not None or not ReduceScatter.carries(compressor):
        raise UnsupportedError(
            f"a reduce-scatter cannot carry {named}: take {CARRIED}, or replicas, with "
            "fully_shard(model, mesh=mesh) on a mesh of two dimensions, whose outer one is compressed by anything"
        )
    if request.collective != "auto" or request.algorithm != "auto":
        raise ConfigError(
            "collective= and algorithm= are of an all-reduce, and a reduce-scatter has one way: leave them"
        )
    compressor = _as_asked(compressor, feedback)
    if not request.feedback.keeps_all and not compressor.error_feedback:
        raise ConfigError("with_feedback() schedules error feedback, and there is none: pass feedback=True, too")
    return replace(request, compressor=compressor, policy=ReduceScattered())


def _as_asked(compressor: Compressor, feedback: bool) -> Compressor:
    """Return a compressor with error feedback or without. Raises ConfigError where it cannot be had so."""
    found = compressor.with_feedback(feedback)
    if found.error_feedback == feedback:
        return found
    if feedback:
        raise ConfigError(
            f"feedback=True remembers what is lost, and {type(compressor).__name__} has no error feedback: leave it out"
        )
    raise ConfigError(
        f"{type(compressor).__name__} is wrong on average without error feedback: pass feedback=True, which takes 8 "
        "bytes an element of the whole model on each rank, or take int8() or int4()"
    )


def _check_engine(request: Request) -> None:
    if request.engine not in ("auto", "torch"):
        raise UnsupportedError(
            f"engine={request.engine!r} knows no groups of FSDP: leave engine at 'auto', which takes torch.distributed"
        )
