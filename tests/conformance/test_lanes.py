"""On a device with streams every step gives the same bits as on the CPU, whatever way a bucket takes.

The device is played (tests/played.py): what is read before its event is poison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import pytest
import torch

from hvd_compress import native, of
from hvd_compress.buckets.layout import Layout
from hvd_compress.devices.device import DeviceLane
from hvd_compress.devices.lane import Lane
from hvd_compress.devices.staged import StagedLane
from hvd_compress.devices.streams import Streams
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import HvdCompressError
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.conformance.cases import OPTIONS, TABLE, Case, is_legal
from tests.covering import combinations
from tests.harness import (
    REQUESTS,
    asked_for,
    backward,
    flat_gradient,
    flat_residual,
    make_optimizer,
    make_parameters,
    on_engine,
    place,
)
from tests.played import LANES, PlayedGpus, PlayedLanes, PlayedStreams

STEPS, SIZE, FEW = 4, 3, 2
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

History = list[tuple[torch.Tensor, torch.Tensor]]


def train(
    engine: InProcessEngine,
    request: Request,
    lanes: object = None,
    dtype: torch.dtype = torch.float32,
    in_flight: int | None = None,
) -> History:
    """Return result and residuals of each step."""
    options = {} if lanes is None else {"lanes": lanes}
    parameters = make_parameters(dtype=dtype)
    settings = Settings(600, 60, in_flight=in_flight)
    optimizer = make_optimizer(
        parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings, **options
    )
    history = []
    for step in range(STEPS):
        backward(parameters, engine.rank, step)
        optimizer.synchronize()
        history.append((flat_gradient(parameters).clone(), flat_residual(optimizer, parameters)))
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    return history


@cache
def on_the_cpu(request: Request, size: int, dtype: torch.dtype = torch.float32) -> list[History]:
    return run_ranks(size, lambda engine: train(engine, request, dtype=dtype))


def same(first: list[History], second: list[History]) -> bool:
    def tensors(histories: list[History]) -> list[torch.Tensor]:
        return [tensor for history in histories for step in history for tensor in step]

    return all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(second), strict=True))


@dataclass(frozen=True)
class OnDevice:
    """A request, the lane of its buckets, and the dtype of the gradients."""

    name: str
    collective: str
    kind: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.name}-{self.collective}-{self.kind}-{self.dtype}".replace("torch.", "")


def can_be_compared(
    name: str, collective: str = "auto", kind: str = "direct", dtype: torch.dtype = torch.float32
) -> bool:
    """Products of matrices in 16 bits have other bits where they lie elsewhere in memory."""
    return is_legal(name, collective, FEW) and (dtype == torch.float32 or TABLE[name].kind != "low rank")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "on_device" in metafunc.fixturenames:
        axes = list(TABLE), sorted({s for c in TABLE.values() for s in asked_for(c)}), list(LANES), DTYPES
        found = combinations(metafunc.config.getoption("--whole-product"), can_be_compared, *axes)
        metafunc.parametrize("on_device", [OnDevice(*values) for values in found], ids=str)


def test_every_lane_gives_the_bits_of_the_cpu(on_device: OnDevice) -> None:
    request, dtype = Request(TABLE[on_device.name], on_device.collective), on_device.dtype
    expected = on_the_cpu(request, FEW, dtype)
    found = run_ranks(FEW, lambda engine: train(engine, request, PlayedLanes(LANES[on_device.kind]), dtype))
    assert same(found, expected)
    assert expected[0][-1][0].isfinite().all()


@pytest.mark.parametrize("kind", LANES)
@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_so_it_is_with_options(option: Case, kind: str) -> None:
    """Whose payloads and sums cross between collectives, too."""
    expected = by_option(option)
    assert same(by_option(option, LANES[kind]), expected)
    assert expected[0][-1][0].any()


def by_option(option: Case, lane: Callable[[Streams], Lane] | None = None, timeout_s: float = 60.0) -> list[History]:
    def body(engine: InProcessEngine) -> History:
        place(engine, option.hosts)
        return train(engine, option.request, None if lane is None else PlayedLanes(lane))

    return run_ranks(option.size, body, timeout_s)


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_what_an_option_moves_between_collectives_is_on_its_streams(option: Case) -> None:
    streams: list[PlayedStreams] = []

    def lane(of_a_rank: PlayedStreams) -> Lane:
        streams.append(of_a_rank)
        return StagedLane(of_a_rank)

    by_option(option, lane)
    for each in streams:
        assert {stream for what, stream, _ in each.log if what == "copy"} == {"outbound", "inbound"}


def test_a_finite_answer_may_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As native.accumulate() gives it on a GPU; nobody looks into it before the end of the step."""
    accumulate = native.accumulate
    expected = on_the_cpu(REQUESTS["topk-star"], SIZE)
    monkeypatch.setattr(native, "accumulate", lambda *a, **k: torch.tensor(accumulate(*a, **k)))
    assert same(run_ranks(SIZE, lambda engine: train(engine, REQUESTS["topk-star"], PlayedLanes(StagedLane))), expected)
    monkeypatch.setattr(native, "accumulate", lambda *a, **k: torch.tensor(accumulate(*a, **k) and False))
    spoilt = run_ranks(SIZE, lambda engine: train(engine, REQUESTS["topk-star"], PlayedLanes(StagedLane)))
    for history in spoilt:
        assert history[0][0].isnan().any()
        assert not history[-1][1].any(), "a residual changed"


@pytest.mark.parametrize("kind", LANES)
def test_sparse_gradients(kind: str) -> None:
    def body(engine: InProcessEngine, lanes: object = None) -> torch.Tensor:
        parameters = {"table": torch.nn.Parameter(torch.zeros(9, 4)), "dense": torch.nn.Parameter(torch.zeros(4))}
        options = {} if lanes is None else {"lanes": lanes}
        optimizer = make_optimizer(parameters, REQUESTS["topk-allgather"], lambda: engine, engine.rank, SIZE, **options)
        for step in range(3):
            rows = torch.tensor([engine.rank, engine.rank + step, 8])
            looked_up = torch.nn.functional.embedding(rows, parameters["table"], sparse=True)
            (looked_up * (1.5 + step) + parameters["dense"]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])

    # Rows need no compression, so they take no lane that brings it to the CPU.
    lane = StagedLane if kind == "offload" else LANES[kind]
    expected = run_ranks(SIZE, body)
    found = run_ranks(SIZE, lambda engine: body(engine, PlayedLanes(lane)))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class ReadsTooEarly(StagedLane):
    """The engine takes what has not been copied yet."""

    @contextmanager
    def communicating(self) -> Iterator[None]:
        yield


class EncodesTooEarly(StagedLane):
    """Compression does not wait for the gradients."""

    def record_input(self) -> None:
        super().record_input()
        self._departed = []


class TurnsTooEarly(StagedLane):
    """Between two collectives nobody waits for the copy."""

    @contextmanager
    def between_collectives(self) -> Iterator[None]:
        with self._inbound():
            yield


class DecodesTooEarly(DeviceLane):
    """What arrived is used before compression has ended."""

    @contextmanager
    def _inbound(self) -> Iterator[None]:
        with self._streams.use(self._streams.inbound):
            yield


class ArrivesTooEarly(StagedLane):
    """The training goes on before the result is there."""

    def wait_output(self, *results: torch.Tensor) -> None: ...


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (ReadsTooEarly, "topk-allgather"),
        (ReadsTooEarly, "dense"),
        (EncodesTooEarly, "topk-star"),
        (EncodesTooEarly, "dense"),
        (TurnsTooEarly, "topk-star"),
        (TurnsTooEarly, "topk-var"),
        (DecodesTooEarly, "topk-star"),
        (ArrivesTooEarly, "efsign"),
    ],
)
def test_the_played_device_shows_every_missing_event(fault: Callable[[Streams], Lane], name: str) -> None:
    """Or the tests above would prove nothing."""
    check_it_shows(
        lambda: run_ranks(2, lambda engine: train(engine, REQUESTS[name], PlayedLanes(fault)), timeout_s=10),
        on_the_cpu(REQUESTS[name], 2),
    )


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_it_does_so_between_the_collectives_of_an_option(option: Case) -> None:
    check_it_shows(lambda: by_option(option, TurnsTooEarly, timeout_s=10), by_option(option))


def check_it_shows(run: Callable[[], list[History]], expected: list[History]) -> None:
    try:
        found = run()
    except (HvdCompressError, AssertionError):
        return  # poison for an index, or a payload
    assert not same(found, expected)


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "topk-var", "efsign", "dense", "bf16"])
def test_only_the_thread_of_the_collectives_waits(name: str) -> None:
    def body(engine: InProcessEngine) -> list[tuple[str, str, str]]:
        streams = PlayedStreams()
        train(engine, REQUESTS[name], PlayedLanes(StagedLane, streams))
        return streams.log

    for log in run_ranks(2, body):
        waits = {thread for what, _, thread in log if what == "wait"}
        assert waits == {"hvd-compress-collectives"}
        orders = [(what, stream) for what, stream, _ in log]
        buckets = orders.count(("mark", "training"))
        assert orders.count(("after training", "outbound")) == buckets == orders.count(("after inbound", "training"))


@pytest.mark.parametrize("users", [3, 0], ids=["users thread on GPU 3", "users thread on GPU 0"])
@pytest.mark.parametrize("kind", LANES)
@pytest.mark.parametrize("name", ["topk-star", "efsign", "dense"])
def test_threads_of_a_rank_on_gpu_3_touch_no_other(name: str, kind: str, users: int) -> None:
    """A new thread is on GPU 0, where each rank would make a context. The user's thread stays where it is."""

    def body(engine: InProcessEngine) -> dict[str, set[int]]:
        gpus = PlayedGpus()
        gpus.set_device(users)
        train(engine, REQUESTS[name], PlayedLanes(LANES[kind], PlayedStreams(gpus, 3)), in_flight=2)
        assert gpus.current == users
        return gpus.touched

    for touched in run_ranks(2, body):
        of_exchange = {thread for thread in touched if thread.startswith("hvd-compress")}
        collectives = () if kind == "offload" else ("collectives", "collectives-1")  # the whole bucket is on the host
        assert of_exchange == {f"hvd-compress-{each}" for each in ("kernels", *collectives)}
        assert {gpu for thread in of_exchange for gpu in touched[thread]} == {3}
        assert {gpu for thread in touched.keys() - of_exchange for gpu in touched[thread]} == {users}


@pytest.mark.parametrize("kind", LANES)
@pytest.mark.parametrize("name", ["topk-star", "efsign", "dense"])
def test_two_ranks_share_a_gpu(name: str, kind: str) -> None:
    """And its two streams, as optimizers of one process do: the work of one only queues behind that of the other."""
    shared = PlayedStreams(PlayedGpus(), 3)
    found = run_ranks(2, lambda engine: train(engine, REQUESTS[name], PlayedLanes(LANES[kind], shared)))
    assert same(found, on_the_cpu(REQUESTS[name], 2))


@pytest.mark.parametrize(("name", "crossings"), [("topk-allgather", 1 + 2), ("topk-star", 2), ("efsign", 1 + 2)])
def test_only_the_payload_crosses_the_bus(name: str, crossings: int) -> None:
    """Out, and in what all ranks sent; with STAR out and in. Dense gradients cross where the CPU compresses them."""
    numel = sum(parameter.numel() for parameter in make_parameters().values())
    for staged, payload_bytes, buckets in run_ranks(2, lambda engine: crossed(engine, name, "staged")):
        assert 0 < staged <= crossings * (payload_bytes + 128 * buckets)  # headers, and gaps
    assert [bus for bus, _, _ in run_ranks(2, lambda engine: crossed(engine, name, "direct"))] == [0, 0]
    assert [bus for bus, _, _ in run_ranks(2, lambda engine: crossed(engine, name, "offload"))] == [8 * numel] * 2
    assert [bus for bus, _, _ in run_ranks(2, lambda engine: crossed(engine, "dense", "staged"))] == [8 * numel] * 2


def crossed(engine: InProcessEngine, name: str, kind: str) -> tuple[int, int, int]:
    """Return the bytes over the bus in the second step, those of all payloads, and the number of buckets."""
    parameters, optimizer = on_engine(engine, REQUESTS[name], lanes=PlayedLanes(LANES[kind]))
    for step in range(2):
        backward(parameters, engine.rank, step)
        optimizer.step()
        optimizer.zero_grad()
    payload_bytes = sum(
        sum(r.nbytes for r in decision.compressor.wire(Layout.of(*(parameters[n].numel() for n in names))))
        for names, decision in of(optimizer).decisions.items()
    )
    assert of(optimizer).last_step is not None
    return of(optimizer).last_step.bus_bytes, payload_bytes, len(of(optimizer).decisions)
