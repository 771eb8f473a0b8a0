"""Payloads that are damaged on their way, or lie: what every decoder makes of them is an error or a valid tensor.

For the tests in CI (test_malformed.py), and for `make fuzz` (tools/fuzz.py), which looks for damage that takes new ways
through the code.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.compressors import Input, Requantizer
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.errors import CommunicationError, PayloadError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.payload import Payload
from tests.brought import brought
from tests.conformance.cases import TABLE, runnable
from tests.conformance.lockstep import CPU, copied
from tests.harness import asked_for

LAYOUT = Layout.of((7, 13), 7, 1, 0, (9, 20))
SIZE = 2
SUMMED = ("allreduce", "alltoall", "dense")
"""Collectives whose values travel as they are: there is nothing to decode."""

UNSPLIT = replace(InProcessWorld(SIZE).engine(0).capabilities, splits=False)
"""Of the engine here: collectives over groups of ranks decode by those over all of them."""

DECODERS = [
    (name, collective)
    for name, compressor in TABLE.items()
    for collective in asked_for(compressor)
    if collective not in SUMMED and collective in runnable(compressor, UNSPLIT)
]
"""(compressor, collective): whatever unpacks what another rank has packed."""
DECODERS += [each for decoders in brought("DECODERS") for each in decoders(TABLE)]

REQUANTIZERS = [name for name, compressor in TABLE.items() if isinstance(compressor, Requantizer)]

MAGIC = Payload({}, 0).pack(0, 0)[:4]
GUARD, GUARD_VALUE = 64, 12345.0


@dataclass
class Guarded:
    """The buffers of a bucket on one rank, each between two guards that nothing may write to."""

    rank: int
    wholes: list[torch.Tensor] = field(default_factory=list)

    def buffer(self, values: torch.Tensor) -> torch.Tensor:
        whole = torch.full((values.numel() + 2 * GUARD,), GUARD_VALUE)
        self.wholes.append(whole)
        part = whole[GUARD : GUARD + values.numel()]
        part.copy_(values)
        return part

    def work(self, name: str, step: int) -> Work:
        compressor = TABLE[name]
        drawn = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(self.rank))
        zeros = torch.zeros(LAYOUT.numel)
        residual = (
            Residual(self.buffer(zeros), self.buffer(zeros), may_defer=True) if compressor.error_feedback else None
        )
        state = BucketState(residual, dict(compressor.new_state(LAYOUT, CPU)))
        hosts = tuple(range(SIZE))
        return Work(self.buffer(drawn), LAYOUT, step, 0, 1 / SIZE, state, self.rank, hosts=hosts)

    def check(self) -> None:
        for whole in self.wholes:
            assert (whole[:GUARD] == GUARD_VALUE).all(), f"rank {self.rank}: written before a buffer"
            assert (whole[-GUARD:] == GUARD_VALUE).all(), f"rank {self.rank}: written beyond a buffer"


SPECIAL = [
    *(struct.pack("<q", n) for n in (-1, 0, 1, 2, 3, 2**31, 2**63 - 1, -(2**63), LAYOUT.numel, LAYOUT.numel + 1)),
    *(struct.pack("<i", n) for n in (-1, 0, 1, 2**31 - 1, -(2**31), LAYOUT.numel - 1, LAYOUT.numel)),
    *(struct.pack("<f", x) for x in (math.nan, math.inf, -math.inf, -1.0, -0.0, 3e38, 1e-45)),
    *(struct.pack("<H", x) for x in (0x7FC0, 0x7F80, 0xFF80, 0xBF80, 0x8000, 0x7F7F)),  # the same, as bf16
]
"""Numbers, lengths, indices and scales that are wrong, or right at the edge."""


@dataclass(frozen=True)
class Damage:
    """What happens to one message.

    Attributes:
        sender: the rank that sends it.
        number: of the payloads that this rank sends.
        position: of the byte where it is overwritten, modulo its length.
        written: by these bytes.
        grown: how many bytes are added at its end, or taken away; not in a broadcast, whose length all ranks know.
    """

    sender: int
    number: int
    position: int
    written: bytes
    grown: int = 0

    def of(self, message: torch.Tensor, may_grow: bool) -> torch.Tensor:
        """Return the damaged message (n,) uint8."""
        grown = self.grown if may_grow else 0
        longer = torch.cat([message, torch.full((max(0, grown),), 7, dtype=torch.uint8)])
        found = longer[: max(0, message.numel() + grown)].clone()
        for offset, byte in enumerate(self.written):
            if found.numel():
                found[(self.position + offset) % found.numel()] = byte
        return found


HEADER = (0, 4, 6, 8, 16, 24, *range(32, 112, 8))
"""Where magic number, count, 0, step, bucket and numel stand, and kinds and lengths of tensors."""

WRITTEN = st.one_of(st.sampled_from(SPECIAL), st.binary(min_size=1, max_size=24))
DAMAGES = st.lists(
    st.builds(
        Damage,
        st.integers(0, SIZE - 1),
        st.integers(0, 2),
        st.one_of(st.sampled_from(HEADER), st.integers(0, 159).map(lambda word: 4 * word), st.integers(0, 640)),
        WRITTEN,
        st.one_of(st.just(0), st.just(0), st.integers(-200, 40)),
    ),
    min_size=1,
    max_size=3,
)
STEPS = st.integers(0, 1)


def exchange_damaged(decoder: tuple[str, str], step: int, damages: Sequence[Damage]) -> int:
    """Take one step by a collective while payloads are damaged on their way; return how many were.

    A rank may fail with a PayloadError, or the CommunicationError by which an engine refuses a length. What else it
    fails with is raised, and an AssertionError where it writes out of range.
    """
    name, collective = decoder
    buffers = [Guarded(rank) for rank in range(SIZE)]
    seen = [0] * SIZE

    def body(engine: InProcessEngine) -> None:
        send = engine.send

        def damaging(destination: int, tensor: torch.Tensor) -> None:
            if tensor.dtype == torch.uint8 and torch.equal(tensor[:4], MAGIC):
                number, seen[engine.rank] = seen[engine.rank], seen[engine.rank] + 1
                for damage in damages:
                    if (damage.sender, damage.number) == (engine.rank, number):
                        tensor = damage.of(tensor, not engine.pending.startswith("broadcast"))
            send(destination, tensor)

        engine.send = damaging  # type: ignore[method-assign]
        work = buffers[engine.rank].work(name, step)
        exchange = collectives.build(TABLE[name], Path(collective)).exchange(work, engine.rank, SIZE)
        exchange.encode()
        exchange.communicate(engine)
        finite = exchange.decode()
        assert (finite.dtype, finite.shape) == (torch.bool, ())
        assert bool(finite) == bool(work.gradient.isfinite().all())

    try:
        run_ranks(SIZE, body)
    except PayloadError:
        pass
    except CommunicationError as error:
        if "was told lengths" not in str(error):
            raise
    for one in buffers:
        one.check()
    return sum(seen)


@dataclass(frozen=True)
class Lie:
    """What a payload says that no honest rank sends, though it is well formed.

    Attributes:
        round_: in which it is sent, if there are so many.
        tensor: which of its tensors is another one, modulo their number.
        numel: of that tensor; None leaves it.
        position: from which byte on it is overwritten, modulo its length.
        written: by these bytes.
    """

    round_: int
    tensor: int
    numel: int | None
    position: int
    written: bytes

    def of(self, payload: Payload) -> Payload:
        """Return the payload that lies."""
        if not payload.tensors:
            return payload
        tensors = dict(payload.tensors)
        name = list(tensors)[self.tensor % len(tensors)]
        honest = tensors[name]
        numel = honest.numel() if self.numel is None else self.numel
        found = torch.zeros(numel, dtype=honest.dtype)
        common = min(numel, honest.numel())
        found[:common] = honest[:common]
        raw = found.view(torch.uint8)
        for offset, byte in enumerate(self.written):
            if raw.numel():
                raw[(self.position + offset) % raw.numel()] = byte
        tensors[name] = found
        return Payload(tensors, payload.numel, payload.summable)


LIES = st.lists(
    st.builds(
        Lie,
        st.integers(0, 1),
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(0, 40), st.integers(0, 2 * LAYOUT.numel)),
        st.one_of(st.integers(0, 159).map(lambda word: 4 * word), st.integers(0, 640)),
        WRITTEN,
    ),
    min_size=1,
    max_size=3,
)


def decode_lies(name: str, lies: Sequence[Lie]) -> None:
    """Have rank 0 decode its own payloads and those of a rank that lies.

    It may fail with a PayloadError. What else it fails with is raised, and an AssertionError where it writes out of
    range.
    """
    buffers = [Guarded(rank) for rank in range(SIZE)]
    works: list[Input] = [one.work(name, 0) for one in buffers]
    rounds = [TABLE[name].rounds(work) for work in works]
    payloads = [next(one) for one in rounds]
    for number in range(2):
        received = [copied(payload) for payload in payloads]
        received[1] = _lying(lies, number, received[1])
        try:
            own = rounds[0].send(received)
        except (PayloadError, StopIteration):
            break
        payloads = [own, rounds[1].send([copied(payload) for payload in payloads])]
    for one in buffers:
        one.check()


def sum_lies(name: str, lies: Sequence[Lie]) -> None:
    """Have rank 0, which owns all of the bucket, sum what a rank that lies has sent, and decode what one says of a sum.

    It may fail with a PayloadError. What else it fails with is raised, and an AssertionError where it writes out of
    range.
    """
    compressor = TABLE[name]
    assert isinstance(compressor, Requantizer)
    owner, other = Guarded(0), Guarded(1)
    own, everything = owner.work(name, 0), slice(0, LAYOUT.numel)
    sent = compressor.encode_shard(other.work(name, 0), everything, 0)
    compressor.keep_shard(own, everything)
    with suppress(PayloadError):
        compressor.sum_shard(own, everything, [_lying(lies, 0, sent)])
    with suppress(PayloadError):
        compressor.write(own, [(everything, [_lying(lies, 1, sent)])])
    owner.check()
    other.check()


def _lying(lies: Sequence[Lie], round_: int, payload: Payload) -> Payload:
    for lie in lies:
        if lie.round_ == round_:
            payload = lie.of(payload)
    return payload


TARGETS: dict[str, tuple[Callable[..., object], tuple[st.SearchStrategy[Any], ...]]] = {
    "bytes": (exchange_damaged, (st.sampled_from(DECODERS), STEPS, DAMAGES)),
    "lies": (decode_lies, (st.sampled_from(list(TABLE)), LIES)),
    "sums": (sum_lies, (st.sampled_from(REQUANTIZERS), LIES)),
}
"""What `make fuzz` calls, with what."""
