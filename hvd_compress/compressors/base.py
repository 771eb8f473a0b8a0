"""What every compressor promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.encodings import Encoding
from hvd_compress.errors import located
from hvd_compress.feedback.states import BucketState, Key
from hvd_compress.payload import Payload

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

Rounds = Generator[Payload, Sequence[Payload], torch.Tensor | None]
"""Yields this rank's payload of a round; is sent those of all ranks in rank order, or their sum as the only one.

Returns whether the result is finite, as a tensor () of bool, where the compressor knows it anyway; else None.
"""


@dataclass(frozen=True)
class Round:
    """One round on the wire.

    Attributes:
        nbytes: of one rank's payload, header aside; the most, where `fixed` is False.
        sum_dtype: in which payloads of all ranks may be added element by element; None where they can only be gathered.
        fixed: whether payloads have this size on every rank in every step.
        usual: the bytes that a payload has on average, by which it is priced; None where that is nbytes.
    """

    nbytes: int
    sum_dtype: torch.dtype | None = None
    fixed: bool = True
    usual: int | None = None

    @property
    def priced(self) -> int:
        """The bytes by which paths and compressors are compared."""
        return self.nbytes if self.usual is None else self.usual


@dataclass(frozen=True)
class Input:
    """One bucket in one step, as a compressor sees it.

    Attributes:
        gradient: (numel,) in the bucket's dtype. Holds this rank's gradient, and the result at the end.
        layout: the parameters in it.
        step: counted from 0; the same on all ranks.
        bucket: its number; the same on all ranks. Of a part that a collective compresses by itself another one, as
            random numbers depend on it.
        scale: what the sum over ranks is multiplied by: 1 / world_size for an average.
        state: what the bucket remembers. Its residual is None where there is no error feedback.
        rank: this rank's number.
        coefficient: what the residual is multiplied by before it is added to the gradient, from 0 to 1.
        world_size: how many ranks there are.
    """

    gradient: torch.Tensor
    layout: Layout
    step: int
    bucket: int
    scale: float
    state: BucketState = field(default_factory=BucketState)
    rank: int = 0
    coefficient: float = 1.0
    world_size: int = 1

    @cached_property
    def residual(self) -> torch.Tensor | None:
        """(numel,) fp32, coefficient * what earlier steps did not send; never written.

        Read first while encoding: with a coefficient below 1 it is computed then, once, into 4 bytes an element.
        """
        kept = self.state.residual
        if kept is None or self.coefficient == 1:
            return kept.current if kept is not None else None
        return kept.current * self.coefficient

    @property
    def pending(self) -> torch.Tensor | None:
        """(numel,) fp32, receives what this step does not send; becomes the residual if the step succeeds."""
        return self.state.residual.pending if self.state.residual is not None else None


MESSAGE_BYTES = 1 << 14
"""What a message of a quantiser counts as, where nothing was measured. Latency times bandwidth is 250 bytes with 20
Mbit/s and 0.1 ms, and 2.5 MB with 1 Gbit/s and 20 ms: over such networks and 2 to 16 ranks this loses least on average
(benchmarks/results/paths.md)."""


class Compressor(ABC):
    """Answers: which values do I send?

    A compressor is a frozen dataclass of settings. It never communicates, never reads the environment and holds no
    state: what it keeps from step to step lies in the bucket's. Tensors are flat; a layout says where parameters lie.

    Attributes:
        kind: "cast", "sparsifier", "quantiser", "low rank" or "transform".
        source: the papers, authors and year.
        error_feedback: whether what is not sent is remembered, as a residual.
        compresses: whether anything is lost: False only where the gradient is sent as it is or rounded.
        has_ratio: whether with_ratio() changes what is sent.
        alike: kinds of what it keeps that results depend on, and that therefore are to be the same on all ranks: those
            of rank 0 count when training begins or goes on. Ranks may come with others, from checkpoints of other
            hosts: of a hierarchical collective leaders alone keep up.
        sends_momentum: whether it compresses a momentum that it keeps: see refuses_momentum().
        functions: those of `Compression` that have another name than plans, with the settings that a plan says for it.
        own_collectives: names of the collectives of its guest that carry it alone, and are chosen as others are.
        message_bytes: what a message costs beside its bytes, in bytes, where a path is chosen by arithmetic: latency
            times bandwidth. 0 counts bytes alone.
    """

    kind: ClassVar[str]
    source: ClassVar[str] = ""
    error_feedback: bool = False
    compresses: bool = True
    has_ratio: bool = False
    alike: ClassVar[tuple[str, ...]] = ()
    sends_momentum: ClassVar[bool] = False
    functions: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    own_collectives: ClassVar[tuple[str, ...]] = ()
    message_bytes: int = 0

    @property
    def encoding(self) -> Encoding | None:
        """How parameters lie in a message of fixed length, rounded to nearest; None where they cannot be sent so."""
        return None

    @abstractmethod
    def wire(self, layout: Layout) -> tuple[Round, ...]:
        """Return the rounds of a bucket; needs no tensor, so that cost, planner and statistics can call it."""

    def is_fixed(self, layout: Layout) -> bool:
        """Whether all ranks know how much they get."""
        return all(round_.fixed for round_ in self.wire(layout))

    def refuses_momentum(self, momentum: float, adapts: bool) -> str:
        """Return what to do where an optimizer with this momentum would train wrongly; nothing where it would not.

        `adapts`: it also divides by what it remembers of squares, as Adam.
        """
        return ""

    def new_state(self, layout: Layout, device: torch.device) -> Mapping[Key, torch.Tensor]:
        """Return what is kept from step to step beside the residual, as it is before the first step, on `device`."""
        return {}

    def resized(self, kept: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return what `new`, a state as it is before the first step, becomes where one of another size was kept."""
        return new

    @abstractmethod
    def rounds(self, work: Input) -> Rounds:
        """Yield this rank's payload of each round. At the end write scale * sum over ranks to work.gradient.

        With error feedback it also writes corrected - transmitted to work.pending. Other state goes to
        work.state.pending. What it writes to work.gradient depends on what it was sent alone: it is the same on all
        ranks.

        Raises:
            PayloadError: lengths or indices of a payload do not fit; it names the rank.
        """

    def with_ratio(self, ratio: float) -> Self:
        """Return the same compressor with another ratio, if it has one."""
        return self

    def with_feedback(self, feedback: bool) -> Self:
        """Return the same compressor with error feedback or without, if it has a choice."""
        return self

    @property
    def shorter(self) -> Compressor | None:
        """The same compressor with payloads that a coder makes shorter, for time; None where there is none."""
        return None

    @property
    def sent_ratio(self) -> float:
        """k / numel of what is sent; 1.0 where every element is, or may be."""
        return 1.0


class SingleRound(Compressor):
    """A compressor whose payload can be decompressed by itself.

    Attributes:
        adds_up: whether the result is `scale` times the sum of what payloads stand for, so that whoever receives them
            all can add them, and send the sum on. Not where rounds() makes something else of it.
    """

    adds_up: ClassVar[bool] = True

    @abstractmethod
    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        """Return what stands for `corrected` (numel,) on the wire."""

    @abstractmethod
    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        """Add `scale` times the decompressed payload to `out` (numel,), fp32.

        Raises:
            PayloadError: lengths or indices do not fit; `out` is then as it was.
        """

    def sum_into(self, out: torch.Tensor, payloads: Sequence[Payload], scale: float, layout: Layout) -> None:
        """Write `scale` times the sum of the decompressed payloads, one a rank and added in this order, to `out`, fp32.

        Raises:
            PayloadError: as add_to(); it names the rank. What `out` holds then means nothing.
        """
        out.zero_()
        for rank, payload in enumerate(payloads):
            with located(f"payload from rank {rank}"):
                self.add_to(out, payload, scale, layout)

    def decompress(self, payload: Payload, layout: Layout) -> torch.Tensor:
        """Return the fp32 tensor (numel,) that the payload stands for, on its device."""
        device = next(iter(payload.tensors.values())).device
        out = torch.zeros(payload.numel, dtype=torch.float32, device=device)
        self.add_to(out, payload, 1.0, layout)
        return out

    def rounds(self, work: Input) -> Rounds:
        payloads = yield self.encode(work)
        # 16-bit gradients are summed in fp32 and rounded once.
        exact = work.gradient.dtype == torch.float32
        total = work.gradient if exact else torch.empty_like(work.gradient, dtype=torch.float32)
        self.sum_into(total, payloads, work.scale, work.layout)
        if total is not work.gradient:
            work.gradient.copy_(total)
        return None

    def encode(self, work: Input) -> Payload:
        """Return the payload of a step; where step, bucket or rank count, not by compress()."""
        return self.compress(work.gradient, work.layout)


class FeedbackCompressor(SingleRound):
    """A compressor that forgets nothing: what it does not send comes back with the next gradient."""

    error_feedback = True

    @abstractmethod
    def compress_feedback(
        self, gradient: torch.Tensor, residual: torch.Tensor, pending: torch.Tensor, layout: Layout
    ) -> Payload:
        """Compress corrected = gradient + residual, and write corrected - transmitted to `pending`.

        The same as compress() between an addition and a subtraction, in as few passes over memory as it takes.
        `residual` and `pending` are fp32 and may not overlap.
        """

    def encode(self, work: Input) -> Payload:
        return self.compress_feedback(work.gradient, *feedback_of(work), work.layout)


class Requantizer(SingleRound):
    """A compressor by which one rank can sum what all have sent of a shard, and compress the sum again.

    What the second compression loses is added to the owner's residual in its shard, where the first one, which the
    owner's gradient does not need, loses nothing: so one residual is enough, and it follows its parameters.

    Attributes:
        granule: a shard begins at a multiple of so many elements.
    """

    granule: int

    def rounds(self, work: Input) -> Rounds:
        """Where nobody owns a shard: one payload of the whole bucket from each rank."""
        everything = slice(0, work.gradient.numel())
        payloads = yield self.encode_shard(work, everything, 0)
        return self.write(work, [(everything, payloads)])

    @abstractmethod
    def template(self, numel: int) -> Payload:
        """Return a payload of `numel` elements, with tensors of the dtypes that all such have, on the CPU.

        Where wire() says that the size is fixed all have this numel, too; else no more.
        """

    @abstractmethod
    def encode_shard(self, work: Input, shard: slice, owner: int) -> Payload:
        """Compress a shard of another rank; with error feedback write what is lost to work.pending."""

    @abstractmethod
    def keep_shard(self, work: Input, shard: slice) -> None:
        """Prepare this rank's own shard, which is not compressed before it is summed."""

    @abstractmethod
    def sum_shard(self, work: Input, shard: slice, others: Sequence[Payload]) -> Payload:
        """Add this rank's own shard and those of the others in rank order, and compress the sum.

        Raises:
            PayloadError: as add_to(); it names the rank.
        """

    @abstractmethod
    def write(self, work: Input, parts: Sequence[tuple[slice, Sequence[Payload]]]) -> torch.Tensor:
        """Write work.scale times the sum of the payloads of each part of the bucket to work.gradient.

        Returns:
            Whether all of it is finite, as a tensor () of bool.

        Raises:
            PayloadError: as add_to(); it names the rank.
        """


def feedback_of(work: Input) -> tuple[torch.Tensor, torch.Tensor]:
    """Return residual and pending of a bucket that has them."""
    assert work.residual is not None
    assert work.pending is not None
    return work.residual, work.pending


def finish(rounds: Rounds, payloads: Sequence[Payload]) -> torch.Tensor | None:
    """Send a compressor the payloads of its last round: the result is written.

    Returns:
        Whether the result is finite, where the compressor knows it; else None.
    """
    try:
        rounds.send(payloads)
    except StopIteration as end:
        known: torch.Tensor | None = end.value
        return known
    raise AssertionError("a compressor has more rounds than wire() says")


def each_checked(
    check: Callable[[Payload, int], T], payloads: Sequence[Payload], ranks: Iterable[int], numel: int
) -> list[T]:
    """Return what `check` makes of payloads of `numel` elements; its PayloadErrors name the rank that each is from."""
    found = []
    for rank, payload in zip(ranks, payloads, strict=True):
        with located(f"payload from rank {rank}"):
            found.append(check(payload, numel))
    return found


def others_of(rank: int, others: Sequence[Payload]) -> list[int]:
    """Return the ranks that payloads are from which all but `rank` have sent, in rank order."""
    return [other for other in range(len(others) + 1) if other != rank]


def is_compressor(found: object) -> bool:
    """Whether something is a compressor, or a class of them."""
    return isinstance(found, Compressor) or (isinstance(found, type) and issubclass(found, Compressor))


def is_frozen_dataclass(kind: type) -> bool:
    """Whether a class, and not only one that it is made of, is one: then an object's repr holds its settings."""
    return "__dataclass_params__" in vars(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def spans(layout: Layout, layerwise: bool) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each parameter of a bucket, or of the whole bucket at once."""
    if not layerwise:
        yield 0, layout.numel
        return
    start = 0
    for numel in layout.segments:
        yield start, start + numel
        start += numel


def packed_spans(layout: Layout, layerwise: bool, bits: int) -> Iterator[tuple[slice, slice]]:
    """Yield spans() as slices, each with that of its bytes where an element takes `bits` bits."""
    first = 0
    for start, stop in spans(layout, layerwise):
        last = first + -(-(stop - start) * bits // 8)
        yield slice(start, stop), slice(first, last)
        first = last
