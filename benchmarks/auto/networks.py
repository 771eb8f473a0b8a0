"""auto() beside each of its arms on emulated networks, its search included, as root:

    python -m benchmarks.auto.networks [--tasks language,images] [--front-ends horovod,ddp] [--networks 100mbit-5ms,...]
    python -m benchmarks.auto.networks --page

One job trains a task by auto() and by single arms, in turns, a window of some steps each, from their second step on:
in the first one ranks connect. Figures are appended to build/auto/networks.jsonl; the last one of a case counts. The
search costs the same however long training takes, so the ratio over STEPS steps follows from the windows: those in
which auto() searched, and the median ratio of the later ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.time_to_accuracy.store import ROOT, circumstances
from benchmarks.turns import median_with_interval
from hvd_compress.netlab import Lab
from hvd_compress.netlab.network import INTERFACE

RESULTS = ROOT / "build" / "auto" / "networks.jsonl"
RANKS, STEPS, SEARCHED, WINDOW = 4, 200, 25, 5
NETWORKS = {
    "1gbit-1ms": ("dense", "bf16", "int8", "int4"),
    "100mbit-5ms": ("int8", "int4"),
    "20mbit-20ms": ("int4",),
    "300mbit-2ms": ("bf16", "int8", "int4"),
    "50mbit-1ms": ("int4",),
    "500mbit-10ms": ("bf16", "int8", "int4"),
}
"""By network, the arms that may be the best there. No threshold was looked at with the last three."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="images,language")
    parser.add_argument("--front-ends", default="horovod,ddp")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--page", action="store_true", help="measure nothing, print the table")
    asked = parser.parse_args()
    if not asked.page:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        for network in asked.networks.split(","):
            for task in asked.tasks.split(","):
                for front_end in asked.front_ends.split(","):
                    run(network, task, front_end, asked.rounds)
    print(page([json.loads(line) for line in RESULTS.read_text().splitlines()]))


def run(network: str, task: str, front_end: str, rounds: int) -> None:
    start_s = time.monotonic()
    wanted = {
        "network": network, "task": task, "front_end": front_end, "arms": NETWORKS[network], "rounds": rounds,
        "steps": WINDOW, "file": str(RESULTS), "circumstances": circumstances(),
    }  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE,
        "HVD_COMPRESS_HOROVOD_NICENESS": "0",  # Horovod's own method shares the process
        "HOROVOD_CYCLE_TIME": "20",  # it has nothing to send, and its threads would take the cores from the training
        "HVD_COMPRESS_CACHE": str(RESULTS.parent / "cache" / network),
    }  # fmt: skip
    bandwidth, latency = network.split("-")
    with Lab(RANKS, latency, bandwidth, name="auto") as lab:
        done = lab.run([sys.executable, "-m", "benchmarks.auto.comparing", json.dumps(wanted)], env=environment)
    if done.returncode:
        raise SystemExit(f"{network}, {task}, {front_end}: a rank ended with status {done.returncode}")
    print(f"{network}, {task}, {front_end}: {time.monotonic() - start_s:.0f} s", flush=True)


def page(found: Sequence[dict[str, Any]]) -> str:
    """Return the table of benchmarks/results/auto.md."""
    latest = {(each["network"], each["task"], each["front_end"]): each for each in found}
    heads = ("network", "task", "front end", "best arm", "ms", "auto / best arm, chosen", "95 %", f"over {STEPS} steps")
    rows = [
        "| " + " | ".join((*heads, "it chose")) + " |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    whole = []
    for (network, task, front_end), each in latest.items():
        windows, searched = each["windows"], SEARCHED // each["steps"]
        best = min(each["arms"], key=lambda arm: median(windows[arm][searched:]))
        pairs = list(zip(windows["auto"], windows[best], strict=True))
        late = [a / b for a, b in pairs[searched:]]
        _, low, high = median_with_interval(late)
        rest = STEPS - SEARCHED
        connecting_s = each["first"]["auto"] - each["first"][best]  # the network is measured, too
        spent = (connecting_s + sum(a for a, _ in pairs[:searched])) / median(windows[best][searched:])
        over = (spent * each["steps"] + rest * median(late)) / STEPS
        whole.append(over)
        ms = 1e3 * median(windows[best][searched:]) / each["steps"]
        cells = [network, task, front_end, best, f"{ms:.0f}", f"{median(late):.3f}", f"{low:.2f} to {high:.2f}"]
        rows.append("| " + " | ".join((*cells, f"{over:.3f}", each["reasons"][0].split(",")[0])) + " |")
    rows.append(f"\nMedian over {len(whole)} cases: {median(whole):.3f}; the largest {max(whole):.3f}.")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
