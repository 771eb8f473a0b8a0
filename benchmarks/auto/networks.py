"""auto() next to each of its arms on emulated networks, its search included, as root:

    python -m benchmarks.auto.networks [--tasks language,images] [--front-ends horovod,ddp] [--networks 100mbit-5ms,...]
    python -m benchmarks.auto.networks --page

One job trains a task by auto() and by single arms, in turns, a window of some steps each, from their second step on:
in the first one ranks connect. Figures are appended to build/auto/networks.jsonl; the last one of a case counts. The
search costs the same however long training takes, so the ratio over STEPS steps follows from the windows: those in
which auto() searched, and the median ratio of the later ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.frame.lab import run
from benchmarks.frame.page import table
from benchmarks.frame.store import BUILD, lines
from hvd_compress.measuring import median_with_interval

FOUND = BUILD / "auto" / "networks.jsonl"
STEPS, SEARCHED, WINDOW = 200, 25, 5
NETWORKS = {
    "1gbit-1ms": ("dense", "bf16", "int8", "int4"),
    "100mbit-5ms": ("int8", "int4", "int3-coded"),
    "20mbit-20ms": ("int4", "int3-coded"),
    "300mbit-2ms": ("bf16", "int8", "int4"),
    "50mbit-1ms": ("int4", "int3-coded"),
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
        for network in asked.networks.split(","):
            for task in asked.tasks.split(","):
                for front_end in asked.front_ends.split(","):
                    measure(network, task, front_end, asked.rounds)
    print(page(lines(FOUND)))


def measure(network: str, task: str, front_end: str, rounds: int) -> None:
    start_s = time.monotonic()
    wanted = {
        **{"network": network, "task": task, "front_end": front_end, "arms": NETWORKS[network]},
        **{"rounds": rounds, "steps": WINDOW},
    }
    # Horovod has nothing to send, and its threads would take the cores from the training.
    run("benchmarks.auto.comparing", wanted, network, FOUND, HOROVOD_CYCLE_TIME="20")
    print(f"{network}, {task}, {front_end}: {time.monotonic() - start_s:.0f} s", flush=True)


def page(found: Sequence[dict[str, Any]]) -> str:
    """Return the table of benchmarks/results/auto.md."""
    latest = {(each["network"], each["task"], each["front_end"]): each for each in found}
    heads = ("network", "task", "front end", "best arm", "ms", "auto / best arm, chosen", "95 %", f"over {STEPS} steps")
    rows, whole = [], []
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
        rows.append([*cells, f"{over:.3f}", each["reasons"][0].split(",")[0]])
    end = f"\n\nMedian over {len(whole)} cases: {median(whole):.3f}; the largest {max(whole):.3f}."
    return table([*heads, "it chose"], rows, words=4) + end


if __name__ == "__main__":
    main()
