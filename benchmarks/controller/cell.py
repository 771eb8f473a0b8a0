"""One rank of benchmarks/controller/grid.py: lets topk() choose a path, then measures every path itself.

One parameter is one bucket. What a path takes is the duration of a step in which there is nothing else, on rank 0,
over some steps behind one another.
"""

from __future__ import annotations

import sys
import time

from job import Job
from launching import answer, begin, gradient

from hvd_compress import schemes
from hvd_compress.compressors import Cast, TopK
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.predict import predict
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
    steps = 1 + job.settle(patience)
    chosen_s = time.perf_counter() - start
    costs = Formulas(parse_latency(latency), 1 / parse_bandwidth(bandwidth), engine.world_size)
    layout, predicted, chosen = job.reducer.session.layouts[0], job.predicted(), job.decision
    found = {way: Cast() if way.scheme == "dense" else compressor for way in predicted}
    stages = {way: schemes.stages(sent, way, layout, engine.world_size) for way, sent in found.items()}
    formulas = {way: predict(way, stages[way], costs).seconds for way in found}
    measured = job.compare()
    job.close()
    return {
        "latency": latency,
        "bandwidth": bandwidth,
        "numel": numel,
        "ratio": ratio,
        "chosen": str(chosen.path),
        "reason": chosen.reason,
        "formulas": str(min(formulas, key=formulas.__getitem__)),
        "measured": measured,
        "predicted": {str(way): seconds for way, seconds in predicted.items() if str(way) in measured},
        "steps": steps,
        "set_up_s": set_up_s,
        "chosen_s": chosen_s,
    }


if __name__ == "__main__":
    main()
