"""One rank of benchmarks/controller/grid.py: lets the controller choose, then measures every candidate itself.

One parameter is one bucket. What a candidate takes is the duration of a step in which there is nothing else, on rank 0,
over some steps behind one another.
"""

from __future__ import annotations

import sys
import time

from job import Job
from launching import answer, begin, gradient

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import TopK
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.predict import predict
from hvd_compress.policies.adaptive import bucket_of, open_paths
from hvd_compress.request.request import Request
from hvd_compress.units import parse_bandwidth, parse_latency


def main() -> None:
    latency, bandwidth, numels, ratios, patience = sys.argv[1:]
    engine = begin()
    for numel in map(int, numels.split(",")):
        values = gradient(engine, numel)
        for ratio in map(float, ratios.split(",")):
            answer(engine, measure(engine, values, ratio, int(patience), latency, bandwidth))
    engine.close()


def measure(engine, values, ratio, patience, latency, bandwidth) -> dict:
    numel = values.numel()
    compressor = TopK(ratio)
    start = time.perf_counter()
    job = Job(engine, values, compressor)
    job.step()  # the network is calibrated, and the first step is no trial
    set_up_s = time.perf_counter() - start
    controller = job.controller
    steps = 1 + job.settle(patience)
    choice = controller.choices()[0]
    chosen_s = time.perf_counter() - start
    costs = Formulas(parse_latency(latency), 1 / parse_bandwidth(bandwidth), engine.world_size)
    layout = Layout.of(numel)
    found = open_paths(Request(compressor), layout, engine.capabilities)
    stages = bucket_of(layout, compressor, found).stages
    formulas = {way: predict(way, stages(way, ratio, engine.world_size), costs).seconds for way in found}
    measured = job.compare()
    job.close()
    return {
        "latency": latency,
        "bandwidth": bandwidth,
        "numel": numel,
        "ratio": ratio,
        "chosen": str(choice.candidate),
        "reason": choice.reason,
        "formulas": str(min(formulas, key=formulas.__getitem__)),
        "measured": measured,
        "predicted": {str(way): controller.predicted(0, way) for way in found if str(way) in measured},
        "steps": steps,
        "set_up_s": set_up_s,
        "chosen_s": chosen_s,
    }


if __name__ == "__main__":
    main()
