"""One rank of benchmarks/controller/grid.py: lets the controller choose, then measures every candidate itself.

One parameter is one bucket. What a candidate takes is the duration of a step in which there is nothing else, on rank 0,
over some steps behind one another.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial

os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "600")

import torch

from hvd_compress.compressors import TopK
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.predict import predict
from hvd_compress.decision import Request, steered, ways
from hvd_compress.engines.base import Engine
from hvd_compress.engines.mpi_environment import prepare
from hvd_compress.reducer import ReduceOptions, Reducer
from hvd_compress.settings import Settings
from hvd_compress.units import parse_bandwidth, parse_latency

LONGEST_S = 60.0
"""What is predicted to take longer than this, and three times as long as the best, is not measured."""


def main() -> None:
    latency, bandwidth, numels, ratios, repetitions, patience = sys.argv[1:]
    prepare()
    from hvd_compress.engines.mpi import MpiEngine

    torch.set_num_threads(1)
    engine = MpiEngine()
    for numel in map(int, numels.split(",")):
        gradient = torch.randn(numel, generator=torch.Generator().manual_seed(engine.rank))
        for ratio in map(float, ratios.split(",")):
            cell = measure(engine, gradient, ratio, int(repetitions), int(patience), latency, bandwidth)
            if engine.rank == 0:
                print("cell " + json.dumps(cell), flush=True)
    engine.close()


def measure(engine, gradient, ratio, repetitions, patience, latency, bandwidth) -> dict:
    numel = gradient.numel()
    parameter = torch.nn.Parameter(torch.zeros(numel))
    compressor = TopK(ratio)
    settings = Settings(4 * numel, 600.0, adapt=True, calibration_s=float(os.environ.get("CALIBRATION_S", "3")))
    start = time.perf_counter()
    reducer = Reducer({"weight": parameter}, Request(compressor), lambda: engine, ReduceOptions(), settings)

    def step() -> None:
        parameter.grad = gradient.clone()
        reducer.ready("weight")
        reducer.finish()

    step()  # the network is calibrated, and the first step is no trial
    set_up_s, steps = time.perf_counter() - start, 1
    controller = reducer.controller
    assert controller is not None
    while not controller.settled and steps < patience:
        step()
        steps += 1
    choice = controller.choices()[0]
    chosen_s = time.perf_counter() - start
    reducer.controller = None  # from here on we choose
    (route,) = reducer._routes
    costs = Formulas(parse_latency(latency), 1 / parse_bandwidth(bandwidth), engine.world_size)
    found = ways(torch.float32, engine.capabilities)
    formulas = {way: predict(way, numel, ratio, costs).seconds for way in found}
    known = {way: controller.predicted(0, way) for way in found}
    measured: dict[str, float] = {}
    for way in sorted(found, key=lambda way: known[way]):
        best = min(measured.values(), default=float("inf"))
        if way != choice.candidate and known[way] > 3 * best + 0.001:
            continue
        if known[way] > LONGEST_S:
            continue
        route.decision = steered(route.decision, compressor, way, "measured")
        route.scheme = route.decision.build()
        step()  # ranks leave it as they will leave all others of this candidate
        start = time.perf_counter()
        for _ in range(repetitions):
            step()
        taken = torch.tensor([(time.perf_counter() - start) / repetitions], dtype=torch.float64)
        # What is measured next depends on it, so that of rank 0 counts on all ranks.
        reducer._pipeline.begin(partial(_from_first_rank, taken), "comparing")()
        measured[str(way)] = float(taken)
    reducer._pipeline.stop()
    return {
        "latency": latency,
        "bandwidth": bandwidth,
        "numel": numel,
        "ratio": ratio,
        "chosen": str(choice.candidate),
        "reason": choice.reason,
        "formulas": str(min(formulas, key=formulas.__getitem__)),
        "measured": measured,
        "predicted": {str(way): known[way] for way in found if str(way) in measured},
        "steps": steps,
        "set_up_s": set_up_s,
        "chosen_s": chosen_s,
    }


def _from_first_rank(taken: torch.Tensor, engine: Engine) -> None:
    engine.broadcast(taken, 0)
    engine.take_calls()


if __name__ == "__main__":
    main()
