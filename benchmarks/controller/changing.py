"""One rank of benchmarks/controller/change.py."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import torch
from job import Job
from launching import answer, begin, gradient

from hvd_compress.compressors import TopK
from hvd_compress.engines.base import Engine

STEADY = 30
"""Steps with a choice that stands, before the network changes."""


def main() -> None:
    folder, numel, ratio, networks, steps, computing_s = sys.argv[1:]
    engine, pause_s = begin(), float(computing_s)
    job = Job(engine, gradient(engine, int(numel)), TopK(float(ratio)))
    for network in range(int(networks)):
        before = str(job.controller.candidates()[0]) if network else "nothing"
        wait = partial(change, folder=Path(folder), network=network)
        wait(engine) if network == 0 else job.between_steps(wait)
        seen = len(job.controller.history) if network else 0
        first = job.reducer.session.step
        if network == 0:
            job.step()  # calibrates
            job.settle(100, pause_s)
        for _ in range(int(steps)):
            time.sleep(pause_s)
            job.step()
        events = list(job.controller.history)[seen:]
        choices = [event for event in events if event.kind == "choice"]
        chosen = str(job.controller.choices()[0].candidate)  # of before, where a round is not over
        measured = job.compare()
        fastest = min(measured, key=measured.__getitem__)
        found = {
            "network": network,
            "before": before,
            "chosen": chosen,
            "steps": choices[-1].step - first if choices else 0,
            "settled": job.controller.settled,
            "measured": measured,
            "duel": job.duel([chosen, fastest], pause_s) if chosen != fastest else {},
            "events": [event.to_json() | {"step": event.step - first} for event in events],
        }
        answer(engine, found)
        if network + 1 < int(networks):
            stand(job, pause_s)
    job.close()
    engine.close()


def stand(job: Job, pause_s: float) -> None:
    """Take steps until a choice has stood for STEADY of them, one after the other; 300 at most."""
    stood = 0
    for _ in range(10 * STEADY):
        time.sleep(pause_s)
        job.step()
        stood = stood + 1 if job.controller.settled else 0
        if stood == STEADY:
            return


def change(engine: Engine, folder: Path, network: int) -> None:
    """Rank 0 asks for the next network and waits for it; the others wait for rank 0."""
    if engine.rank == 0:
        (folder / f"ready-{network}").touch()
        while not (folder / f"changed-{network}").exists():
            time.sleep(0.01)
    engine.broadcast(torch.zeros(1), 0)
    engine.take_calls()


if __name__ == "__main__":
    main()
