"""What is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

import torch

from hvd_compress import collectives
from hvd_compress.checks import check_choice
from hvd_compress.compressors import Compressor
from hvd_compress.engines.base import ENGINES
from hvd_compress.engines.names import KNOWN
from hvd_compress.errors import ConfigError, UsageError, located
from hvd_compress.feedback.schedule import ALL_BACK, FeedbackSchedule
from hvd_compress.native.cuda import kernels as cuda_kernels
from hvd_compress.settings import Settings

DEVICES = ("auto", "cpu", "cuda")
WORDS = ("collective", "algorithm", "engine", "device")
"""Arguments of Request.by()."""


class PolicySettings(ABC):
    """What a policy is told: a frozen dataclass, whose repr is compared between ranks."""

    takes: ClassVar[tuple[str, ...]] = ("engine",)
    """Of WORDS, those that it leaves to the request."""
    allocates_sum: ClassVar[bool] = False
    """Whether the results of steps are summed, in what buckets remember."""

    takes_shards: ClassVar[bool] = False
    """Whether it also decides for gradients of parameters that are sharded, as FSDP2's are."""

    @abstractmethod
    def make(self, request: Request, settings: Settings) -> object:
        """Return a new policies.DecisionPolicy. It measures nothing where its `measuring_s` is None."""

    @property
    def needs_optimizer(self) -> str:
        """Why it needs the optimizer that exchanges gradients, which DDP has not, and what to do; or nothing."""
        return ""

    @property
    def compressors(self) -> tuple[Compressor, ...]:
        """By what buckets may travel beside the request's own, as far as it is known before the first step."""
        return ()

    def beside(self, kind: str) -> PolicySettings:
        """Return the same for gradients that an optimizer of a kind takes, "sgd" or "adam"."""
        return self

    def in_rounds(self) -> PolicySettings:
        """Return the same for exchanges between rounds of local steps."""
        return self


@dataclass(frozen=True)
class Request:
    """What the user asked for: `Compression.topk(...)` and its siblings return one.

    Attributes:
        compressor: which values are sent.
        collective, algorithm, engine, device: what by() was given.
        policy: what decides in the place of the request itself.
        feedback: how much of a residual comes back, from step to step.

    What is "auto" is chosen by real steps, where the compressor loses anything.
    """

    compressor: Compressor
    collective: str = "auto"
    algorithm: str = "auto"
    engine: str = "auto"
    device: str = "auto"
    policy: PolicySettings | None = None
    feedback: FeedbackSchedule = ALL_BACK

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As it was pickled, perhaps by a version that called a collective a scheme."""
        earlier = {"collective": state["scheme"]} if "scheme" in state else {}
        self.__dict__.update({name: value for name, value in state.items() if name != "scheme"} | earlier)

    def __post_init__(self) -> None:
        known = ("auto", *collectives.requests_for(self.compressor))
        if isinstance(self.collective, str) and self.collective not in known:
            collectives.is_of_guest(self.collective)  # where that guest is not here, it says so
        check_choice("collective", self.collective, known, " here")
        check_choice("algorithm", self.algorithm, ("auto", *KNOWN.get(self.verb or "", ())), " here")
        check_choice("engine", self.engine, ENGINES, " here")
        check_choice("device", self.device, DEVICES, " here")
        if self.algorithm != "auto" and self.collective == "auto" and not collectives.sums(self.compressor):
            raise ConfigError(
                f"algorithm={self.algorithm!r} names an allreduce, and what cannot be summed travels by all-gather: "
                "leave it at 'auto'"
            )

        if not self.feedback.keeps_all and self.policy is None and not self.compressor.error_feedback:
            raise ConfigError(
                f"{self.compressor} has no error feedback, so no residual comes back by a schedule: leave "
                "with_feedback() out"
            )

    def by(
        self,
        *,
        collective: str | None = None,
        algorithm: str | None = None,
        engine: str | None = None,
        device: str | None = None,
    ) -> Request:
        """Return the same request with what every compression takes: how payloads travel, and what compresses.

            Compression.topk(0.01).by(collective="star", algorithm="ring", engine="mpi")

        What is not given stays as it was, which is "auto" at first. Where collective and algorithm are both named,
        nothing is chosen or measured. What decides for each bucket, such as auto() or plan(), takes the engine, and
        where it leaves that open the device.

        Args:
            collective: who sends what to whom: the name of one that carries the compression, or "auto", which is what
                takes the least time by real steps, or else by a short measurement in the first step or by arithmetic.

                "allgather": every rank's payload to all. "allreduce": sums of payloads (random-k; factors in fp32).
                "alltoall-allgather": each rank owns a shard of the bucket, sums it and compresses the sum again;
                "gather-broadcast": one rank owns everything. "star", "var": AR-Topk, one rank's indices, taken in turn
                or by the largest squared norm; "artopk": the one of both that gains more, chosen while training.

                Never "auto": "hierarchical" (ranks of a host sum their gradients, and the first of them exchanges what
                is selected of the sum), "hierarchical-within", "hierarchical-both" (what travels within a host is
                compressed, too), "hitopk" (each rank of a host exchanges a shard: HiTopKComm), "parameter-server"
                (rank 0 sums for all).
            algorithm: of every allreduce: "ring", "tree", "recursive_doubling", "rabenseifner"; with
                collective="allgather" of the all-gather: "ring", "bruck"; or "auto", the fastest.
            engine: "mpi", "horovod", "torch", or "auto": MPI where mpirun launched the job, else Horovod; under PyTorch
                DDP torch.distributed.
            device: what compresses: "cuda", "cpu" (gradients on a GPU are copied to the host and back), or "auto",
                where the gradients are.

        Raises:
            ConfigError: a value is unknown, or does not go with the compression or with another value.
        """
        given = dict(zip(WORDS, (collective, algorithm, engine, device), strict=True))
        said: dict[str, Any] = {word: value for word, value in given.items() if value is not None}
        takes = WORDS if self.policy is None else self.policy.takes
        for word, value in said.items():
            if word not in takes and value != getattr(self, word):
                raise ConfigError(
                    f"{word}={value!r} is not for {type(self.policy).__name__}, which decides that for each bucket, or "
                    f"passes on what it was given: by() takes {' and '.join(takes)} here"
                )
        return replace(self, **said)

    def with_feedback(self, initial: float = 0.5, growth: float = 0.1, every: int = 50) -> Request:
        """Return the same request with a coefficient of error feedback that grows with the steps, up to 1.

        corrected = gradient + coefficient * residual, with coefficient = min(1, initial + growth * (step // every)). It
        acts on every bucket that has error feedback; where a policy decides, such as a plan, on those that it gives
        some. A saved plan does not hold it. While it is below 1 a step takes 4 bytes an element more.

        Args:
            initial: of the first `every` steps, in [0, 1].
            growth: added after each `every` steps, 0 or more.
            every: a number of steps. The defaults are those of COVAP's authors.

        Raises:
            ConfigError: a value is out of range, or the compression has no error feedback.
        """
        return replace(self, feedback=FeedbackSchedule(initial, growth, every))

    @property
    def allocates_sum(self) -> bool:
        """Whether the results of steps are summed, in what buckets remember."""
        return self.policy is not None and self.policy.allocates_sum

    @property
    def compressors(self) -> tuple[Compressor, ...]:
        """By what buckets may travel, as far as it is known before the first step."""
        return self.compressor, *(self.policy.compressors if self.policy is not None else ())

    def compress(self, *_: Any) -> NoReturn:
        """Not supported: Horovod asks it of what allreduce(compression=) is given."""
        raise UsageError(
            "allreduce() takes Compression.none or Compression.fp16: what other functions of Compression return is for "
            "gradients, in DistributedOptimizer(compression=) or compress(model, ...)"
        )

    decompress = compress

    def beside(self, kind: str) -> Request:
        """Return the same for gradients that an optimizer of a kind takes, "sgd" or "adam": some policies ask."""
        return self if self.policy is None else replace(self, policy=self.policy.beside(kind))

    @property
    def verb(self) -> str | None:
        """The collective of which `algorithm` is one."""
        return "allreduce" if self.collective == "auto" else collectives.verb_of(self.collective)


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


def check_devices(parameters: Mapping[str, torch.Tensor], request: Request) -> None:
    """Raise what makes compression impossible on this rank, before any other rank is asked.

    Raises:
        ConfigError: parameters are not where the request wants them to be.
        UnsupportedError: they are on a GPU, and there are no kernels for it.
    """
    for name, parameter in parameters.items():
        with located(f"parameter {name!r}"):
            device = compression_device(request, parameter.device.type)
            if device == "cuda" and (request.compressor.compresses or request.policy is not None):
                cuda_kernels(parameter.device)
