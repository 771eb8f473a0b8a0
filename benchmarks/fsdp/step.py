"""Seconds of a step under HSDP, two ranks a host, in an emulated network (root): compressed against uncompressed.

    python -m benchmarks.fsdp.step --hosts 2 --network 100mbit-5ms

The task is the language model of benchmarks/time_to_accuracy. All methods are trained in one job, in windows, in turns.
"""

from __future__ import annotations

import click

from benchmarks.frame.lab import found
from benchmarks.frame.page import ms, ratio_cells, table

SHARDS = 2
"""Ranks of a host."""
TITLES = ("method", "MB across hosts, a rank", "step, ms", "of the first", "95 %")


@click.command(help=__doc__)
@click.option("--hosts", default=2, show_default=True)
@click.option("--network", default="100mbit-5ms", show_default=True)
@click.option("--methods", default="uncompressed,int8,int4", show_default=True, help="Compared with the first.")
@click.option("--rounds", default=8, show_default=True)
@click.option("--window", default=4, show_default=True, help="Steps.")
def main(hosts: int, network: str, methods: str, rounds: int, window: int) -> None:
    wanted = {"methods": methods.split(","), "rounds": rounds, "window": window}
    (job,) = found("benchmarks.fsdp.stepping", wanted, network, hosts=hosts, slots=SHARDS)
    rows = []
    for place, (method, sent_bytes) in enumerate(zip(wanted["methods"], job["sent_bytes"], strict=True)):
        ratios = ratio_cells([taken[place] / taken[0] for taken in job["rounds"]])
        rows.append([method, f"{1e-6 * sent_bytes:.2f}", ms(taken[place] for taken in job["rounds"]), *ratios])
    print(table(TITLES, rows))


if __name__ == "__main__":
    main()
