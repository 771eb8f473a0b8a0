r"""What does a local step cost, and how much of an exchange is hidden by the steps that follow it?

    hvd-compress netlab run --hosts 2 --own-cores --latency 20ms --bandwidth 20mbit -- \
        python -m benchmarks.overlap.local

Windows of 16 steps of the transformer of time_to_accuracy, in turns, in one job: a plain loop without any exchange,
local steps that do not come to one, and rounds of 16 steps with int4(), whose exchange is waited for at once or lands 8
steps later. A window of rounds begins in the middle of one. What is hidden is the share of the seconds that an exchange
adds to a round, if it is waited for, which it does not add if it lands later.
"""

from __future__ import annotations

import itertools
import os
import statistics

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "600")

import click

import hvd_compress.torch as hvd
from benchmarks.frame.circumstances import circumstances, told
from benchmarks.frame.page import head, ratio_cells, row
from benchmarks.frame.ranks import over_gloo, rank, say
from benchmarks.frame.store import BUILD, append
from benchmarks.frame.turns import rounds, window
from benchmarks.time_to_accuracy.job import Replica
from benchmarks.time_to_accuracy.methods import METHODS, local
from benchmarks.time_to_accuracy.tasks import TASKS

EVERY, DELAY, NEVER = 16, 8, 10**6
KINDS = {
    "a plain loop": METHODS["alone"],
    "local steps that exchange nothing": local(NEVER),
    f"`every={EVERY}`, `int4()`": local(EVERY),
    f"`every={EVERY}`, `int4()`, `delay={DELAY}`": local(EVERY, DELAY),
}


@click.command(help=__doc__)
@click.option("--rounds", "count", default=12, show_default=True)
def main(count: int) -> None:
    hvd.init()
    with over_gloo():
        replicas = [Replica(TASKS["language"], method) for method in KINDS.values()]
        for replica in replicas:
            window(replica.step, EVERY + EVERY // 2)  # the first exchange, and half a round
        taken = list(itertools.islice(rounds([each.step for each in replicas], EVERY), count))
        if rank() == 0:
            append(BUILD / "overlap" / "local.jsonl", {"rounds": taken, "circumstances": circumstances()})
        say(f"{told()}\n{hvd.size()} hosts, {count} rounds\n\n{head(('', 'ms a step', 'of a plain loop', '95 %'))}")
        for place, name in enumerate(KINDS):
            step_ms = 1e3 * statistics.median(each[place] for each in taken)
            say(row([name, f"{step_ms:.1f}", *ratio_cells([each[place] / each[0] for each in taken])]))
        hidden = [(waited - late) / (waited - without) for _, without, waited, late in taken]
        say("\nhidden of an exchange: {}, {}".format(*ratio_cells(hidden)))
    hvd.shutdown()


if __name__ == "__main__":
    main()
