"""What the streams of a GPU call of torch.cuda, on a stand-in for it that knows contexts and current devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from hvd_compress.devices import Lanes
from hvd_compress.devices.cuda import CudaStreams
from hvd_compress.native import cuda, faults

GPU = torch.device("cuda", 3)


class Cuda:
    """Of torch.cuda what is called here. `contexts` are the GPUs on which something has made one, as CUDA 12 does.

    A thread's current device is 0 at first. What torch guards itself works on its own device; else on the current one.
    """

    def __init__(self) -> None:
        self.contexts: set[int] = set()
        self._local = threading.local()

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 4

    def current_device(self) -> int:
        return getattr(self._local, "current", 0)

    def set_device(self, device: torch.device | int) -> None:
        self._local.current = device if isinstance(device, int) else device.index
        self.touch()

    def touch(self) -> None:
        self.contexts.add(self.current_device())

    @contextmanager
    def device(self, device: torch.device | int) -> Iterator[None]:
        """It goes back without a context where there was none."""
        before = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self._local.current = before

    @contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        """It goes back by set_device()."""
        before = self.current_device()
        self.set_device(stream.device)
        try:
            yield
        finally:
            self.set_device(before)

    def Stream(self, device: torch.device, priority: int = 0) -> SimpleNamespace:  # noqa: N802 (as torch's)
        with self.device(device):
            return SimpleNamespace(device=device, wait_event=lambda event: self.contexts.add(device.index))

    def current_stream(self, device: torch.device | int) -> SimpleNamespace:
        return SimpleNamespace(device=torch.device("cuda", device), cuda_stream=7)

    def Event(self, blocking: bool = False) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(
            record=lambda stream: self.contexts.add(stream.device.index), synchronize=lambda: self.touch()
        )

    def is_current_stream_capturing(self) -> bool:
        return self.current_device() == GPU.index


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    played, zeros = Cuda(), torch.zeros

    def made(*shape: int, pin_memory: bool = False, **options: object) -> torch.Tensor:
        if pin_memory:
            played.touch()
        return zeros(*shape, **options)

    for name in dir(Cuda):
        if not name.startswith("_") and hasattr(torch.cuda, name):
            monkeypatch.setattr(torch.cuda, name, getattr(played, name))
    monkeypatch.setattr(torch, "zeros", made)
    return played


def in_a_new_thread(call: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def use_streams(streams: CudaStreams) -> None:
    moment = streams.mark(streams.current())
    streams.after(streams.outbound, moment)
    with streams.use(streams.outbound):
        assert torch.cuda.current_device() == GPU.index
        streams.pinned(3, torch.float32)
    streams.pinned(3, torch.float32)
    streams.wait(moment)


def test_no_call_makes_a_context_on_a_current_device_that_is_another(played: Cuda) -> None:
    """In a user's thread it may be, and it stays so."""
    streams = CudaStreams(GPU)
    for current in (0, 1):

        def call(current: int = current) -> None:
            played._local.current = current
            use_streams(streams)
            assert played.current_device() == current

        in_a_new_thread(call)
    assert played.contexts == {GPU.index}


def test_a_thread_is_given_the_first_gpu(played: Cuda) -> None:
    def call() -> None:
        Lanes().set_device([torch.device("cpu"), GPU, torch.device("cuda", 1)])
        assert played.current_device() == GPU.index

    in_a_new_thread(call)
    assert played.contexts == {GPU.index}


def test_without_a_gpu_nothing_is_called(played: Cuda) -> None:
    Lanes().set_device([torch.device("cpu")])
    assert played.contexts == set()


def test_a_kernel_is_launched_on_the_device_of_its_tensors(played: Cuda) -> None:
    launched: list[int] = []

    class Library:
        def __getattr__(self, name: str) -> object:
            setattr(self, name, lambda *arguments: launched.append(played.current_device()) or 0)
            return getattr(self, name)

    kernels = cuda.Kernels(Library(), GPU, lambda: torch.cuda.current_stream(3).cuda_stream)  # type: ignore[arg-type]
    faults._all.pop()  # of these kernels
    in_a_new_thread(kernels.topk)
    assert launched == [GPU.index]
    assert played.contexts == {GPU.index}


def test_a_capture_is_seen_on_the_device_of_the_tensors(played: Cuda) -> None:
    """torch looks at its current device."""
    assert faults.is_capturing(GPU)
    assert not faults.is_capturing(torch.device("cuda", 1))
    assert not faults.is_capturing(torch.device("cpu"))
    assert played.current_device() == 0
