"""As floor.py, with one method a job, as users run them: in turns, each time in a lab of its own (root).

    python benchmarks/overlap/apart.py --hosts 4 --latency 5ms --bandwidth 100mbit --task images

Where there are more ranks than cores, methods whose threads and connections share a process disturb each other.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from hvd_compress.netlab import Lab

ROOT = Path(__file__).resolve().parents[2]


@click.command(help=__doc__)
@click.option("--hosts", default=4, show_default=True)
@click.option("--own-cores", is_flag=True)
@click.option("--latency", required=True)
@click.option("--bandwidth", required=True)
@click.option("--task", default="language", show_default=True)
@click.option("--methods", default="ddp,ddp-fp16,dense,bf16,int4,int4-ddp", show_default=True)
@click.option("--turns", default=3, show_default=True, help="Jobs of each method.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--window", default=4, show_default=True, help="Steps.")
@click.option("--linux-tcp", is_flag=True)
@click.option("--loss", default=0.0, show_default=True, help="The share of packets that is lost.")
@click.option("--jitter", default="0s", show_default=True)
def main(methods: str, turns: int, hosts: int, own_cores: bool, latency: str, bandwidth: str, **words: Any) -> None:
    names = methods.split(",")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "HVD_COMPRESS_CACHE": folder,
        }
        network = {key: words[key] for key in ("linux_tcp", "loss", "jitter")}
        for turn in range(turns):
            for name in names if turn % 2 else reversed(names):
                rows = Path(folder, f"{name}-{turn}")
                options = {"latency": latency, "bandwidth": bandwidth, "methods": name, "rows": rows}
                options.update({key: words[key] for key in ("task", "rounds", "window")})
                command = [sys.executable, str(Path(__file__).with_name("floor.py"))]
                command += [part for key, value in options.items() for part in (f"--{key}", str(value))]
                with Lab(hosts, latency, bandwidth, own_cores=own_cores, **network) as lab:
                    lab.run(command, env=environment, stdout=sys.stderr).check_returncode()
                found[name].append(json.loads(rows.read_text()))
    print("| method | buckets | computes, ms | floor, ms | step, ms | of the floor | of the first |\n|" + " --- |" * 7)
    for name in names:
        jobs = found[name]
        alone, floor, step = (f"{1e3 * _median(jobs, key):.1f}" for key in ("alone_s", "floor_s", "step_s"))
        buckets = ", ".join(dict.fromkeys(str(job["buckets"]) for job in jobs))
        above = [statistics.median(job["floors"]) for job in jobs]
        first = [job["step_s"] / other["step_s"] for job, other in zip(jobs, found[names[0]], strict=True)]
        print(f"| {name} | {buckets} | {alone} | {floor} | {step} | {_spread(above)} | {_spread(first)} |", flush=True)


def _median(jobs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(job[key] for job in jobs)


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
