"""A device with streams, played in ordinary memory: what is read too early is not there yet.

A stream is a list of things to do, and does them as late as it may: when somebody waits for it. Until then, what a
copy to the host will write holds poison, and so does what kernels wrote before a moment that nobody has waited for.
A copy to the device is done at once, since kernels are, and checked later: its source may not have changed meanwhile.
So a read that is not ordered after its write gives poison, NaN or an index of -1, in every run.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from hvd_compress.devices import Lanes
from hvd_compress.devices.device import DeviceLane
from hvd_compress.devices.lane import Lane
from hvd_compress.devices.offload import OffloadLane
from hvd_compress.devices.staged import StagedLane
from hvd_compress.devices.streams import Streams

POISON = 0xFF
"""In every byte: NaN in all floating-point types, -1 in all integers with a sign."""


@dataclass(eq=False)
class PlayedStream:
    """What a stream has been given and has not done yet. The training stream does at once what it is given."""

    name: str
    eager: bool = False
    tasks: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0

    def give(self, task: Callable[[], None]) -> None:
        self.tasks.append(task)
        if self.eager:
            self.run(len(self.tasks))

    def run(self, until: int) -> None:
        while self.done < until:
            task, self.tasks[self.done] = self.tasks[self.done], _nothing
            self.done += 1
            task()


@dataclass(frozen=True)
class PlayedMoment:
    stream: PlayedStream
    place: int


class PlayedGpus:
    """The GPUs of a process, as CUDA tells them apart: each thread has a current one, number 0 until it sets another.

    Attributes:
        touched: by the name of a thread, on which GPUs it has called something.
    """

    def __init__(self) -> None:
        self.touched: defaultdict[str, set[int]] = defaultdict(set)
        self._local = threading.local()

    def set_device(self, number: int) -> None:
        self._local.number = number

    @property
    def current(self) -> int:
        return getattr(self._local, "number", 0)

    def touch(self) -> None:
        """Call what works on the current GPU: it has a context from then on."""
        self.touched[threading.current_thread().name].add(self.current)


class PlayedStreams(Streams):
    """Streams whose device is the memory of the host.

    Attributes:
        log: what was asked for, in order, the stream, and the name of the thread.
        kept: of which memory the allocator was told, and the stream.
        gpus, number: which GPU it is, if there are several. Each method counts as a call on the thread's current one,
            though torch sets the right one in some: threads of the exchange have to set it once for all.
    """

    def __init__(self, gpus: PlayedGpus | None = None, number: int = 0) -> None:
        self.gpus, self.number = gpus or PlayedGpus(), number
        self.device = torch.device("cpu")
        self.outbound, self.inbound = PlayedStream("outbound"), PlayedStream("inbound")
        self.training = PlayedStream("training", eager=True)
        self.log: list[tuple[str, str, str]] = []
        self.kept: list[tuple[torch.Tensor, PlayedStream]] = []
        self._pinned: dict[int, torch.Tensor] = {}
        self._local = threading.local()
        self._lock = threading.RLock()

    def current(self) -> PlayedStream:
        self.gpus.touch()
        return getattr(self._local, "stream", self.training)

    @contextmanager
    def use(self, stream: PlayedStream) -> Iterator[None]:
        """Kernels run at once, so everything that the stream was given before has to be done first."""
        before, self._local.stream = self.current(), stream
        with self._lock:
            stream.run(len(stream.tasks))
        try:
            yield
        finally:
            self._local.stream = before

    def mark(self, stream: PlayedStream, *written: torch.Tensor) -> PlayedMoment:
        """Hide what was written until somebody waits for this moment, or a later one of the same stream."""
        with self._lock:
            self._note("mark", stream)
            hidden = [(tensor, tensor.clone()) for tensor in written]
            for tensor in written:
                _poison(tensor)

            def show() -> None:
                for tensor, content in hidden:
                    tensor.copy_(content)

            stream.tasks.append(show)  # not give(): the training stream, too, is late
            return PlayedMoment(stream, len(stream.tasks))

    def after(self, stream: PlayedStream, moment: PlayedMoment) -> None:
        with self._lock:
            self._note(f"after {moment.stream.name}", stream)
            stream.give(lambda: moment.stream.run(moment.place))

    def wait(self, moment: PlayedMoment) -> None:
        with self._lock:
            self._note("wait", moment.stream)
            moment.stream.run(moment.place)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert target.shape == source.shape
        assert target.dtype == source.dtype
        with self._lock:
            stream = self.current()
            self._note("copy", stream)
            stream.run(len(stream.tasks))  # it may have to read the target first
            content = source.clone()
            if target.untyped_storage().data_ptr() in self._pinned:
                _poison(target)
                stream.give(lambda: _fill(target, content))
                return
            target.copy_(source)
            stream.give(lambda: _check_unchanged(source, content))

    def pinned(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        self.gpus.touch()
        memory = torch.zeros(numel, dtype=dtype)
        self._pinned[memory.untyped_storage().data_ptr()] = memory
        return memory

    def zeros(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        self.gpus.touch()
        return torch.zeros(numel, dtype=dtype)

    def keep(self, tensor: torch.Tensor, stream: PlayedStream) -> None:
        self.gpus.touch()
        self.kept.append((tensor, stream))

    def _note(self, what: str, stream: PlayedStream) -> None:
        self.gpus.touch()
        self.log.append((what, stream.name, threading.current_thread().name))


def _nothing() -> None: ...


def _fill(target: torch.Tensor, content: torch.Tensor) -> None:
    target.copy_(content)


def _poison(tensor: torch.Tensor) -> None:
    tensor.view(torch.uint8).fill_(POISON)


def _check_unchanged(source: torch.Tensor, content: torch.Tensor) -> None:
    assert torch.equal(source.view(torch.uint8), content.view(torch.uint8)), "written while a copy still reads it"


LANES: dict[str, Callable[[Streams], Lane]] = {"direct": DeviceLane, "staged": StagedLane, "offload": OffloadLane}


class PlayedLanes(Lanes):
    """Gives every bucket a lane of one kind, all on the same streams, and threads the device of these."""

    def __init__(self, kind: Callable[[Streams], Lane], streams: PlayedStreams | None = None) -> None:
        self._kind, self._streams = kind, streams or PlayedStreams()

    def lane_for(self, gradients: torch.device, compression: str, engine_takes: Sequence[str]) -> Lane:
        return self._kind(self._streams)

    def set_device(self, gradients: Iterable[torch.device]) -> None:
        if tuple(gradients):
            self._streams.gpus.set_device(self._streams.number)
