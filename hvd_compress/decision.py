"""What is asked for, what is decided for a bucket, and the scheme that carries it out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from hvd_compress.compressors import Cast, Compressor, FeedbackCompressor, Sparsifier
from hvd_compress.controller.course import TRIED
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.cost.candidates import Candidate, candidates
from hvd_compress.engines.base import ALGORITHMS, ALLGATHERS, ENGINES, Capabilities
from hvd_compress.errors import ConfigError
from hvd_compress.schemes import AllGather, AllToAll, ARTopk, Dense, Scheme

SCHEMES = ("allgather", "artopk", "star", "var")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Request:
    """What the user asked for: `Compression.topk(...)` and its siblings return one.

    Attributes:
        compressor: which values are sent.
        scheme: "auto", or for sparsifiers one of SCHEMES; "artopk" is "star" or "var", whichever gains more.
        algorithm: of every allreduce, one of ALGORITHMS, or with scheme="allgather" of the all-gather, one of
            ALLGATHERS; or "auto".
        engine: "auto", "mpi" or "horovod".
        device: what compresses: "auto" (where the gradient lies), "cpu" or "cuda".
        ratio: how the ratio is chosen while training, together with scheme and algorithm; that of the compressor is the
            one to begin with. None where it is fixed.

    What is "auto" of a sparsifier is chosen while training runs.
    """

    compressor: Compressor
    scheme: str = "auto"
    algorithm: str = "auto"
    engine: str = "auto"
    device: str = "auto"
    ratio: AutoRatio | None = None

    def __post_init__(self) -> None:
        sparse = isinstance(self.compressor, Sparsifier)
        _one_of("scheme", self.scheme, ("auto", *SCHEMES) if sparse else ("auto",))
        _one_of("algorithm", self.algorithm, ("auto", *(ALLGATHERS if self.scheme == "allgather" else ALGORITHMS)))
        _one_of("engine", self.engine, ENGINES)
        _one_of("device", self.device, DEVICES)
        if self.ratio is not None and not (sparse and self.scheme == self.algorithm == "auto"):
            raise ConfigError(
                "a ratio is chosen together with scheme and algorithm of a sparsifier: leave both at 'auto'"
            )
        if self.algorithm != "auto" and not sparse and self.compressor.sum_dtype(torch.float32) is None:
            raise ConfigError(
                f"algorithm={self.algorithm!r} names an allreduce, and what cannot be summed travels by all-gather: "
                "leave it at 'auto'"
            )

    @property
    def verb(self) -> str:
        """The collective of which `algorithm` is one."""
        return "allgather" if self.scheme == "allgather" else "allreduce"


@dataclass(frozen=True)
class Decision:
    """How one bucket travels. The same on every rank.

    Attributes:
        compressor: which values are sent.
        ratio: k / numel of a sparsifier, 1.0 otherwise.
        scheme: "dense", "alltoall", "allgather", "star" or "var".
        algorithm: of the allreduce, or of the all-gather where that is the scheme.
        broadcast: algorithm of AR-Topk's broadcast of indices.
        device: where compression runs: "cpu" or "cuda".
        reason: why it was chosen, in words.
    """

    compressor: Compressor
    ratio: float
    scheme: str
    algorithm: str = "auto"
    device: str = "cpu"
    reason: str = ""
    broadcast: str = "auto"

    @property
    def candidate(self) -> Candidate:
        """How it travels, without what is sent."""
        return Candidate(self.scheme, self.algorithm, self.broadcast)

    @property
    def is_trial(self) -> bool:
        """Whether the bucket only tries to travel so: the controller has not chosen yet, or is about to choose anew."""
        return self.reason == TRIED

    def facts(self) -> dict[str, Any]:
        """Return what a viewer of a timeline wants to know."""
        return {"candidate": str(self.candidate), "ratio": self.ratio, "device": self.device}

    def build(self) -> Scheme:
        """Return the scheme that carries the decision out."""
        compressor = self.compressor
        if self.scheme == "dense":
            return Dense(compressor, self.algorithm)
        if self.scheme == "alltoall":
            return AllToAll(compressor)
        if self.scheme == "allgather" and isinstance(compressor, FeedbackCompressor):
            return AllGather(compressor, self.algorithm)
        if self.scheme in ("star", "var") and isinstance(compressor, Sparsifier):
            return ARTopk(compressor, self.scheme, self.algorithm, self.broadcast)
        raise ConfigError(f"scheme {self.scheme!r} cannot carry {compressor}")


def decide(
    request: Request, dtype: torch.dtype, world_size: int, can: Capabilities, gradients_on: str = "cpu"
) -> Decision:
    """Turn a request into the decision for a bucket. Pure: the same arguments give the same decision.

    Args:
        dtype: of the gradients.
        can: what the engine can do.
        gradients_on: the kind of device where the gradients lie.

    Raises:
        ConfigError: the request has no meaning for such a bucket.
    """
    return replace(_decide(request, dtype, world_size, can), device=compression_device(request, gradients_on))


def compression_device(request: Request, gradients_on: str) -> str:
    """Return the kind of device that compresses gradients on a device of kind `gradients_on`.

    Raises:
        ConfigError: a GPU was asked for, and the gradients are not on one.
    """
    if request.device == "auto":
        return gradients_on
    if request.device != gradients_on and request.device != "cpu":
        raise ConfigError(
            f"device={request.device!r} asks for compression on a GPU of gradients on the {gradients_on.upper()}: move "
            "the model there, or leave device at 'auto', which compresses where gradients are"
        )
    return request.device


def is_adaptive(request: Request) -> bool:
    """Whether the request leaves anything of how a bucket travels to the controller."""
    open_ = request.scheme in ("auto", "artopk") or request.algorithm == "auto"
    return isinstance(request.compressor, Sparsifier) and open_


def workers_open(request: Request) -> bool:
    """Whether the choice between STAR and VAR is the controller's, wherever AR-Topk is used."""
    return isinstance(request.compressor, Sparsifier) and request.scheme in ("auto", "artopk")


def with_ratio(compressor: Compressor, ratio: float) -> Compressor:
    """Return the same compressor with another ratio, if it has one."""
    return replace(compressor, ratio=ratio) if isinstance(compressor, Sparsifier) else compressor  # type: ignore[type-var]


def ways(request: Request, dtype: torch.dtype, can: Capabilities) -> tuple[Candidate, ...]:
    """Return every way in which an adaptive request can send a bucket of `dtype`; none for what is not compressed.

    Where STAR and VAR are open, "star" stands for both. A named algorithm leaves an all-gather's open: it has no
    allreduce.
    """
    if dtype == torch.float64:
        return ()
    dense = ("dense",) if dtype in can.sum_dtypes else ()
    schemes = {"auto": (*dense, "allgather", "star"), "artopk": ("star",)}.get(request.scheme, (request.scheme,))
    named = request.algorithm

    def is_open(way: Candidate) -> bool:
        other = way.scheme == "allgather" and request.scheme != "allgather"
        return named == "auto" or other or way.algorithm == named

    return tuple(filter(is_open, candidates(can, schemes)))


def steered(before: Decision, compressor: Compressor, candidate: Candidate, reason: str) -> Decision:
    """Return the decision that sends a bucket as `candidate` says, or else as before."""
    dense = candidate.scheme == "dense"
    return replace(
        before,
        compressor=Cast() if dense else compressor,
        ratio=1.0 if dense or not isinstance(compressor, Sparsifier) else float(compressor.ratio),
        scheme=candidate.scheme,
        algorithm=candidate.algorithm,
        broadcast=candidate.broadcast,
        reason=reason,
    )


def _decide(request: Request, dtype: torch.dtype, world_size: int, can: Capabilities) -> Decision:
    compressor, algorithm = request.compressor, request.algorithm
    if dtype == torch.float64:
        algorithm = algorithm if request.verb == "allreduce" else "auto"
        return Decision(Cast(), 1.0, "dense", algorithm, reason="float64 gradients are not compressed")
    wire_dtype = compressor.sum_dtype(dtype)
    if wire_dtype is not None:
        if wire_dtype in can.sum_dtypes:
            return Decision(compressor, 1.0, "dense", algorithm, reason="asked for")
        if algorithm != "auto":
            raise ConfigError(
                f"algorithm={algorithm!r} names an allreduce, and {wire_dtype} travels by all-to-all, "
                "which sums it in float32: leave it at 'auto'"
            )
        return Decision(compressor, 1.0, "alltoall", reason=f"the engine cannot sum {wire_dtype}")
    if not isinstance(compressor, Sparsifier):
        return Decision(compressor, 1.0, "allgather", reason="its payloads cannot be summed")
    if request.ratio is not None and world_size == 1:
        return Decision(Cast(), 1.0, "dense", reason="no compression pays with one rank")
    ratio = float(compressor.ratio)
    if request.scheme == "artopk":
        return Decision(compressor, ratio, "star", algorithm, reason="asked for; ranks take turns at first")
    if request.scheme != "auto":
        return Decision(compressor, ratio, request.scheme, algorithm, reason="asked for")
    if algorithm != "auto":
        return Decision(
            compressor, ratio, "star", algorithm, reason="an algorithm was asked for, and STAR has allreduce"
        )
    # By the bandwidth terms of the two schemes, in units of 4k bytes: all-gather 2(N-1), AR-Topk 1 + 2(N-1)/N.
    if 2 * (world_size - 1) <= 1 + 2 * (world_size - 1) / world_size:
        return Decision(compressor, ratio, "allgather", reason=f"fewer bytes than AR-Topk with {world_size} ranks")
    return Decision(compressor, ratio, "star", reason=f"fewer bytes than all-gather with {world_size} ranks")


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"unknown {what} {value!r}; known here are {', '.join(known)}")
