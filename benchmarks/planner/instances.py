"""Random planning problems that are small enough for brute force, and how near policies come to the optimum."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from hvd_compress.papers.espresso.baselines import BYTEPS_COMPRESS, HITOPKCOMM, POLICIES, brute_force
from hvd_compress.papers.espresso.bench.testbeds import WORK, compressor
from hvd_compress.papers.espresso.espresso import algorithm1, espresso, near_optimal
from hvd_compress.papers.espresso.options import UNCOMPRESSED, Constraints
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.profiler.profiles import (
    CompressorProfile,
    DeviceTimes,
    Link,
    ModelProfile,
    SystemProfile,
    Tensor,
    Times,
)

MOST_TENSORS = 5
_ON_GPU = (
    HITOPKCOMM,
    BYTEPS_COMPRESS.replace("host", "training"),
    "comp@training allgather*@all decomp@training",
    "comp@training alltoall*@all decomp@training comp@training allgather*@all decomp@training",
    "comp@training alltoall*@within decomp@training comp@training alltoall*@across decomp@training comp@training "
    "allgather*@across decomp@training comp@training allgather*@within decomp@training",
)
REDUCED = (
    str(UNCOMPRESSED),
    "reduce_scatter@within allreduce@across allgather@within",
    *_ON_GPU,
    *(name.replace("training", "host") for name in _ON_GPU),
)
"""12 options for 4 and 5 tensors: uncompressed, across hosts alone, flat, and everywhere, by either collective; on the
GPU or on the CPU."""
ONCE = Constraints(most_compressions=1, mixed=False)
"""For 2 and 3 tensors: all options that compress once at most, on one device."""


def problem(seed: int) -> Problem:
    """Return a problem of 2 to 5 tensors, all of it drawn from a seed.

    Sizes from 1e3 to 1e8 elements, a third of them that of the tensor before; computations from 10 us to 30 ms; 2 to 8
    hosts with 1 to 8 GPUs; 5 to 300 GB/s within a host and 0.5 to 25 GB/s across; times of one of the paper's
    compressors, on each device up to 3 times longer or shorter.
    """
    draw = random.Random(seed)
    sizes = [round(10 ** draw.uniform(3, 8))]
    for _ in range(draw.randint(1, MOST_TENSORS - 1)):
        sizes.append(sizes[-1] if draw.random() < 1 / 3 else round(10 ** draw.uniform(3, 8)))
    tensors = (Tensor(name=f"p{n}", numel=size, backward_us=_log(draw, 10, 3e4)) for n, size in enumerate(sizes))
    system = SystemProfile(
        hosts=draw.choice((2, 4, 8)),
        ranks_per_host=draw.choice((1, 2, 4, 8)),
        within=Link(alpha_us=_log(draw, 2, 20), bytes_per_s=_log(draw, 5e9, 3e11)),
        across=Link(alpha_us=_log(draw, 5, 100), bytes_per_s=_log(draw, 5e8, 2.5e10)),
    )
    model = ModelProfile(model=f"seed {seed}", tensors=tuple(tensors))
    return Problem(model, system, _scaled(draw), ONCE if len(sizes) < 4 else Constraints(only=REDUCED))


def _log(draw: random.Random, low: float, high: float) -> float:
    """Return a number whose logarithm is uniform."""
    return float(low * (high / low) ** draw.random())


def _scaled(draw: random.Random) -> CompressorProfile:
    profile = compressor(draw.choice(list(WORK)))
    factors = {device: _log(draw, 1 / 3, 3) for device in profile.devices}
    devices = {
        device: DeviceTimes(
            compress=_times(times.compress, factors[device]), decompress=_times(times.decompress, factors[device])
        )
        for device, times in profile.devices.items()
    }
    return profile.model_copy(update={"devices": devices})


def _times(times: Times, factor: float) -> Times:
    return Times(numel=times.numel, us=tuple(factor * us for us in times.us))


@dataclass(frozen=True)
class Distance:
    """F of a problem's policies over that of the optimum."""

    seed: int
    tensors: int
    ratios: dict[str, float]


SEARCHES = ("Algorithm 1", "Algorithms 1 and 2", "and local search", "ours: local search from all policies")


def distances(count: int, budget_s: float) -> Iterator[Distance]:
    """Compare with brute force, seeds from 0 on."""
    for seed in range(count):
        made = problem(seed)
        optimum = brute_force(made)
        two = espresso(made)
        found = (
            algorithm1(made),
            two,
            near_optimal(made, [two], budget_s),
            near_optimal(made, [policy(made) for policy in POLICIES.values()], budget_s),
        )
        ratios = {name: chosen.end_ns / optimum.end_ns for name, chosen in zip(SEARCHES, found, strict=True)}
        yield Distance(seed, len(made.sizes), ratios)
