"""`hvd-compress doctor`: what is installed here, and can training run?"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import click

from hvd_compress.cli import findings, probes
from hvd_compress.cli.findings import Finding


@click.command("doctor", help="List what is installed, and say whether training can run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    found = examine()
    obstacles = [finding.name for finding in found if finding.required and finding.state == "missing"]
    if as_json:
        rows = [asdict(finding) for finding in found]
        click.echo(json.dumps({"training_can_run": not obstacles, "findings": rows}, indent=2))
    else:
        _print_table(found)
        click.echo(_verdict(found, obstacles))
    sys.exit(1 if obstacles else 0)


def examine() -> list[Finding]:
    """Look at everything. The probes are processes of their own, and run side by side as far as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = dict(zip(probes.PROBES, pool.map(probes.run, probes.PROBES), strict=True))
    return [
        findings.python(),
        findings.torch(results["torch"]),
        findings.horovod(results["horovod"]),
        *findings.idle_horovod(results["horovod"], results["torch"]),
        findings.mpi(results["mpi"]),
        *findings.slots(results["slots"], results["mpi"]),
        findings.localhost(results["localhost"]),
        findings.native(results["native"]),
        *findings.engines(results["algorithms"], results["torch"], results["horovod"]),
        findings.simd(results["native"]),
        findings.cuda(results["native"], results["torch"]),
        *findings.tcp_after_idle(),
        findings.network_namespaces(results["namespaces"]),
    ]


def _verdict(found: Sequence[Finding], obstacles: Sequence[str]) -> str:
    if obstacles:
        return f"Training cannot run without: {', '.join(obstacles)}."
    if any(finding.name == "Horovod" and finding.state != "ok" for finding in found):
        return "Training can run over torch.distributed, but not by hvd_compress.torch, which needs Horovod."
    return "Training can run."


def _print_table(found: Sequence[Finding]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "missing": "red", "note": "yellow"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("what was found, and what to do", overflow="fold")
    for finding in found:
        words = f"{finding.detail}\n-> {finding.hint}" if finding.hint else finding.detail
        # Text, as paths and error messages may contain what rich takes for markup.
        table.add_row(Text(finding.name), Text(finding.state, colours[finding.state]), Text(words))
    Console().print(table)
