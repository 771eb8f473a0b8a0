"""What compression takes: time to make a payload and to add it to a tensor, by size, and bytes of the payload."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import cast

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compression.named import compressor_named as compressor_named
from hvd_compress.compressors import Compressor, Input
from hvd_compress.compressors.base import SingleRound
from hvd_compress.cost.curves import Curve
from hvd_compress.cost.formulas import Terms
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.payload import Payload
from hvd_compress.policies.plan_settings import settings_of
from hvd_compress.profiler.curves import fit_terms
from hvd_compress.profiler.profiles import CompressorProfile, Device, DeviceTimes, PayloadSize, Times
from hvd_compress.session.clocks import Clock, clock_of

SMALLEST, LARGEST = 1 << 8, 1 << 24
"""Elements of the smallest and the largest tensor that is measured: 1 KiB, and a fused bucket of 64 MiB."""
STEP = 4
WARM_UP = 3
"""Calls that are not timed: memory is mapped, and the residual has something in it."""
FEWEST, MOST = 3, 30
"""Calls that are timed at each size, as the budget allows."""
BUDGET_S = 3.0
EVICTED_BYTES = 64 << 20
"""Written before each call that is timed, so that residuals and results are as far from the processor as in a step."""


def require_payloads(compressor: Compressor) -> SingleRound:
    """Return a compressor whose payload can be decompressed by itself, as options of a plan take it.

    Raises UnsupportedError for any other, and UsageError for one of the user's own, which a file cannot name.
    """
    settings_of(compressor)
    if not getattr(compressor, "adds_up", False):
        raise UnsupportedError(
            f"{compressor} has no payload that can be decompressed and added by itself, which a planned option needs: "
            "profile another compressor, as with --compressor topk:ratio=0.01"
        )
    return cast("SingleRound", compressor)


def sizes_of(numels: Sequence[int]) -> list[int]:
    """Return the sizes to measure for a model whose tensors have these numbers of elements, ascending.

    From its smallest tensor to all of it in one bucket, each STEP times the one before, within SMALLEST to LARGEST.
    """
    first = min(max(SMALLEST, min(numels)), LARGEST)
    last = min(max(first, sum(numels)), LARGEST)
    sizes = [first]
    while sizes[-1] * STEP < last:
        sizes.append(sizes[-1] * STEP)
    return sizes if sizes[-1] == last else [*sizes, last]


class Bench:
    """One tensor that is compressed again and again, with error feedback where the compressor has it.

    On the host beside a GPU a compression copies the gradient to the host's memory first, and the result back: both
    belong to its time.
    """

    def __init__(self, compressor: SingleRound, numel: int, home: torch.device, device: torch.device) -> None:
        self._compressor = compressor
        place = "cpu" if device.type == "cpu" else f"{device.type} 0"
        self._layout = Layout(("0",), ((numel,),), place=place)
        self._home = _heavy_tailed(numel).to(home)
        self._drawn = self._home.clone()
        self._evicted = torch.zeros(EVICTED_BYTES // 4, device=device)
        self._gradient = self._home if device == home else _pinned(numel, home)
        residual = Residual.zeros(numel, device) if compressor.error_feedback else None
        self._state = BucketState(residual, dict(compressor.new_state(self._layout, device)))
        self._out = torch.zeros(numel, device=device)
        self._step = 0
        self._payload = self._encoded()

    def _encoded(self) -> Payload:
        """Return the payload of a step as collectives have it made: what is lost joins the residual of the next."""
        return next(self._compressor.rounds(Input(self._gradient, self._layout, self._step, 0, 1.0, self._state)))

    @property
    def residual(self) -> torch.Tensor | None:
        """What the last step has lost, (numel,) fp32."""
        return self._state.residual.current if self._state.residual is not None else None

    @property
    def payload_bytes(self) -> int:
        """Of the last payload, packed."""
        return self._payload.packed_bytes

    def compress(self) -> None:
        if self._gradient is not self._home:
            self._gradient.copy_(self._home)
        self._payload = self._encoded()
        if self._gradient is not self._home:
            self._home.copy_(self._gradient)

    def evict(self) -> None:
        """Leave nothing in the caches but the gradient, which a step has just copied to its bucket. Not timed."""
        self._evicted.add_(1.0)
        self._home.copy_(self._drawn)

    def decompress(self) -> None:
        self._compressor.add_to(self._out, self._payload, 1.0, self._layout)

    def end_step(self) -> None:
        """What is not timed: the residual of the next step is that of this one."""
        self._state.commit()
        self._step += 1


def measure_compressor(
    compressor: Compressor,
    sizes: Sequence[int],
    devices: Mapping[Device, torch.device],
    *,
    budget_s: float = BUDGET_S,
    make_clock: Callable[[torch.device], Clock] = clock_of,
    source: str = "",
) -> CompressorProfile:
    """Measure a compressor on gradients with heavy tails, made from a seed.

    Times are means of FEWEST to MOST calls, and never decrease with the size (Curve.through): where ranks share
    processors, a median would be of the calls that had one for themselves. Bytes of a payload are fitted to those of
    packed payloads, with the least squares of relative errors.

    Args:
        sizes: elements, as sizes_of() gives them.
        devices: what compresses: "training", where gradients lie, and perhaps "host".
        budget_s: seconds for each device, about; what FEWEST calls take is spent in any case.

    Raises:
        ConfigError: there are no sizes, or none of a device.
        UnsupportedError: its payload cannot be decompressed by itself.
        UsageError: it is the user's own.
    """
    payloads = require_payloads(compressor)
    if not sizes or min(sizes) < 1 or "training" not in devices:
        raise ConfigError(f"cannot measure a compressor at sizes {list(sizes)} on devices {list(devices)}")
    home, found, nbytes = devices["training"], {}, dict[int, float]()
    with torch.cuda.device(home) if home.type == "cuda" else nullcontext():  # another one may be current
        for name, device in devices.items():
            clock = make_clock(home)
            curves: tuple[dict[int, float], dict[int, float]] = ({}, {})
            for size in sorted(set(sizes)):
                bench = Bench(payloads, size, home, device)
                for curve, seconds in zip(curves, _means(bench, clock, budget_s / len(sizes)), strict=True):
                    curve[size] = seconds
                nbytes[size] = bench.payload_bytes
            found[name] = DeviceTimes(compress=_times(curves[0]), decompress=_times(curves[1]))
    return CompressorProfile(
        compressor=settings_of(compressor), payload=_payload_size(nbytes), devices=found, source=source
    )


def _means(bench: Bench, clock: Clock, budget_s: float) -> tuple[float, float]:
    """Return the mean seconds of a compression and of a decompression, in turns, within a budget."""
    taken: list[tuple[float, float]] = []
    for _ in range(WARM_UP):
        bench.compress()
        bench.decompress()
        bench.end_step()
    end_s = time.perf_counter() + budget_s
    while len(taken) < FEWEST or (len(taken) < MOST and time.perf_counter() < end_s):
        taken.append((_timed(bench, bench.compress, clock), _timed(bench, bench.decompress, clock)))
        bench.end_step()
    compress, decompress = zip(*taken, strict=True)
    return statistics.fmean(compress), statistics.fmean(decompress)


def _timed(bench: Bench, call: Callable[[], object], clock: Clock) -> float:
    bench.evict()
    clock.settle()
    begin = clock.now()
    call()
    end = clock.now()
    clock.settle()
    return clock.seconds(begin, end)


def _times(measured: Mapping[int, float]) -> Times:
    curve = Curve.through(measured)
    return Times(numel=curve.sizes, us=tuple(1e6 * seconds for seconds in curve.times))


def _payload_size(nbytes: Mapping[int, float]) -> PayloadSize:
    per_tensor, per_element = fit_terms([(Terms(1, size), found) for size, found in nbytes.items()])
    largest = max(nbytes)
    return PayloadSize(per_tensor_bytes=per_tensor, per_element_bytes=per_element or nbytes[largest] / largest)


def _heavy_tailed(numel: int) -> torch.Tensor:
    """Return normal numbers, each times the exponential of another one, (numel,) fp32: as uneven as gradients are."""
    draw = partial(torch.randn, numel, generator=torch.Generator().manual_seed(numel))
    return draw() * draw().exp_()


def _pinned(numel: int, beside: torch.device) -> torch.Tensor:
    """Return memory of the host to which a GPU copies at full speed."""
    return torch.zeros(numel, pin_memory=beside.type == "cuda")
