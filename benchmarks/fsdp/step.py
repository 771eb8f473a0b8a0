"""Seconds of a step under FSDP2 in an emulated network (root): compressed against uncompressed.

    python -m benchmarks.fsdp.step --hosts 2 --network 100mbit-5ms                 # HSDP, a replica a host of 2 ranks
    python -m benchmarks.fsdp.step --mesh 4 --methods uncompressed,bf16,int4+gathers-int8,int4+differences-int4
    python -m benchmarks.fsdp.step --mesh 4 --hosts 4 --methods uncompressed,bf16,int4+gathers-int8
    python -m benchmarks.fsdp.step --mesh 4 --network 10gbit-0.1ms --methods int4,int4+gathers-int8,int4+gathers-auto

The task is the language model of benchmarks/time_to_accuracy. All methods are trained in one job, in windows, in turns.
"""

from __future__ import annotations

import click

from benchmarks.frame.lab import found
from benchmarks.frame.page import ms, ratio_cells, table
from benchmarks.time_to_accuracy.tasks import RANKS

TITLES = ("method", "MB a rank sends, gradients", "parameters", "step, ms", "of the first", "95 %", "of the second")


@click.command(help=__doc__)
@click.option("--hosts", default=2, show_default=True)
@click.option("--mesh", default="2x2", show_default=True, help="2x2: replicas by shards; 4: shards.")
@click.option("--network", default="100mbit-5ms", show_default=True)
@click.option("--methods", default="uncompressed,int8,int4", show_default=True, help="Compared with the first.")
@click.option("--rounds", default=8, show_default=True)
@click.option("--window", default=4, show_default=True, help="Steps.")
def main(hosts: int, mesh: str, network: str, methods: str, rounds: int, window: int) -> None:
    wanted = {"methods": methods.split(","), "mesh": mesh, "rounds": rounds, "window": window}
    (job,) = found("benchmarks.fsdp.stepping", wanted, network, hosts=hosts, slots=RANKS // hosts)
    rows = []
    for place, (method, sent) in enumerate(zip(wanted["methods"], job["sent_bytes"], strict=True)):
        first, second = (
            ratio_cells([taken[place] / taken[base] for taken in job["rounds"]])
            for base in (0, min(1, len(wanted["methods"]) - 1))
        )
        sizes = ["" if each is None else f"{1e-6 * each:.2f}" for each in sent]
        rows.append([method, *sizes, ms(taken[place] for taken in job["rounds"]), *first, second[0]])
    print(table(TITLES, rows))
    for method, form in zip(wanted["methods"], job["forms"], strict=True):
        if method.endswith("-auto"):
            print(f"\n{method} has chosen {form}")


if __name__ == "__main__":
    main()
