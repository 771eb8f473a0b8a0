"""How long a step takes, dense and compressed: the performance model of Agarwal et al., sections 4.2.1 to 4.2.4.

"Utility of gradient compression", chapter 4 of Agarwal's thesis. Dense is DDP: buckets are summed beside the backward
pass, all but the last. Compressed, nothing is hidden: encoding competes with the backward pass for the device, so it
follows it (section 4.2.1). Collectives are rings of all ranks; alpha is the latency of one message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from hvd_compress.checks import check_number
from hvd_compress.cost.formulas import Formulas, Terms, allgather, allreduce
from hvd_compress.errors import ConfigError

GAMMA = 1.07
"""gamma where none is given: the middle of the 1.04 to 1.1 that section 4.2.4.1 observed."""
BUCKET_BYTES = 25.0 * (1 << 20)
"""PyTorch DDP's bucket_cap_mb, which section 4.1.1 names."""
MOST_BUCKETS = 1e15
"""More are no whole numbers any more."""


@dataclass(frozen=True)
class Training:
    """What a step is without its communication.

    Attributes:
        backward_s: T_comp, seconds of the backward pass on one device.
        gradient_bytes: of all gradients.
        forward_s: seconds of a step before the backward pass; the paper's times leave it out.
        bucket_bytes: b; the last bucket holds what is left.
        gamma: how many times as long the backward pass takes with communication beside it.
    """

    backward_s: float
    gradient_bytes: float
    forward_s: float = 0.0
    bucket_bytes: float = BUCKET_BYTES
    gamma: float = GAMMA

    def __post_init__(self) -> None:
        _check(self, ("backward_s", "forward_s"), 0)
        _check(self, ("gamma",), 1)
        for name in ("gradient_bytes", "bucket_bytes"):
            check_number(name, getattr(self, name), 0, above=True)
        if self.gradient_bytes / self.bucket_bytes > MOST_BUCKETS:
            raise ConfigError(f"bucket_bytes = {self.bucket_bytes} are too few for {self.gradient_bytes} of gradients")

    @property
    def buckets(self) -> int:
        """k."""
        return math.ceil(self.gradient_bytes / self.bucket_bytes)

    @property
    def last_bytes(self) -> float:
        """The last bucket's, which waits for the end of the backward pass."""
        return self.gradient_bytes - (self.buckets - 1) * self.bucket_bytes

    def faster(self, times: float) -> Training:
        """Return it on a device that computes `times` as fast."""
        return replace(self, backward_s=self.backward_s / times, forward_s=self.forward_s / times)


@dataclass(frozen=True)
class Payload:
    """What a rank sends in one round: an allreduce where it may be summed, else an all-gather."""

    nbytes: float
    summable: bool = True

    def __post_init__(self) -> None:
        _check(self, ("nbytes",), 0)


@dataclass(frozen=True)
class Compression:
    """The whole gradient, compressed at once behind the backward pass.

    Attributes:
        payloads: of the rounds, one after the other.
        encode_s: seconds to make them.
        decode_s: seconds to decode one rank's payloads, or their sum. What is gathered is decoded for every rank.
    """

    payloads: tuple[Payload, ...]
    encode_s: float = 0.0
    decode_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self, ("encode_s", "decode_s"), 0)

    @property
    def nbytes(self) -> float:
        """Of one rank's payloads of a step."""
        return sum(payload.nbytes for payload in self.payloads)

    @property
    def summable(self) -> bool:
        return all(payload.summable for payload in self.payloads)

    def coding_s(self, ranks: int) -> float:
        """Return the seconds of encoding and decoding with so many ranks."""
        return self.encode_s + self.decode_s * (1 if self.summable else ranks)

    def terms(self, ranks: int) -> Terms:
        """Return the latency and bandwidth terms of all rounds."""
        rounds = [(allreduce if each.summable else allgather)(each.nbytes, ranks, "ring") for each in self.payloads]
        return sum(rounds, Terms(0, 0))

    def faster(self, times: float) -> Compression:
        """Return it on a device that computes `times` as fast: coding is compute (section 4.2.5)."""
        return replace(self, encode_s=self.encode_s / times, decode_s=self.decode_s / times)

    def traded(self, k: float, larger: float) -> Compression:
        """Return one that codes in 1/k of the time and sends larger * k times the bytes: Figure 4.14, `larger` is l.

        With k = 1 it is the compression itself.
        """
        factor = larger * k if k != 1 else 1.0
        payloads = tuple(replace(payload, nbytes=factor * payload.nbytes) for payload in self.payloads)
        return replace(self.faster(k), payloads=payloads)


@dataclass(frozen=True)
class Spans:
    """Seconds of a step, one after the other; `communication_s` is what the backward pass does not hide."""

    forward_s: float
    backward_s: float
    communication_s: float
    encode_s: float = 0.0
    decode_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s + self.communication_s + self.encode_s + self.decode_s

    def to_json(self) -> Mapping[str, float]:
        return {**asdict(self), "total_s": self.total_s}


@dataclass(frozen=True)
class Case:
    """A model on a network, with and without a compression.

    Attributes:
        network: alpha, beta (seconds per byte of the slowest link) and the number of ranks, 2 or more.
    """

    training: Training
    network: Formulas
    compression: Compression

    def __post_init__(self) -> None:
        if self.network.world_size < 2:
            raise ConfigError(
                "with one rank nothing is communicated, so that nothing can be saved: give 2 ranks or more"
            )

    def dense(self) -> Spans:
        """max(gamma T_comp, (k-1) T_comm(b)) + T_comm(last bucket), section 4.2.4.1, with Eq. 4.1 of the ring."""
        training = self.training
        backward_s = training.gamma * training.backward_s
        bucket_s, last_s = (self._allreduce_s(size) for size in (training.bucket_bytes, training.last_bytes))
        exposed_s = max(0.0, (training.buckets - 1) * bucket_s - backward_s) + last_s
        return Spans(training.forward_s, backward_s, exposed_s)

    def compressed(self) -> Spans:
        """T_comp + encode + T_comm(payloads) + decode, nothing of which overlaps."""
        training, compression, ranks = self.training, self.compression, self.network.world_size
        communication_s = compression.terms(ranks).seconds(self.network.alpha, self.network.beta)
        decode_s = compression.coding_s(ranks) - compression.encode_s
        return Spans(training.forward_s, training.backward_s, communication_s, compression.encode_s, decode_s)

    @property
    def speedup(self) -> float:
        """How many times as fast a step is with compression; below 1 it is slower."""
        compressed_s = self.compressed().total_s
        return self.dense().total_s / compressed_s if compressed_s else math.inf

    def at(self, bytes_per_s: float) -> Case:
        """Return it with another bandwidth."""
        return replace(self, network=replace(self.network, beta=1 / bytes_per_s))

    def of(self, ranks: int) -> Case:
        """Return it with another number of ranks."""
        return replace(self, network=replace(self.network, world_size=ranks))

    def faster(self, times: float) -> Case:
        """Return it with devices that compute `times` as fast."""
        return replace(self, training=self.training.faster(times), compression=self.compression.faster(times))

    def traded(self, k: float, larger: float) -> Case:
        """Return it with Compression.traded()."""
        return replace(self, compression=self.compression.traded(k, larger))

    def _allreduce_s(self, size: float) -> float:
        return self.network.seconds("allreduce", "ring", size)


def _check(record: object, names: tuple[str, ...], low: float) -> None:
    for name in names:
        check_number(name, getattr(record, name), low)
