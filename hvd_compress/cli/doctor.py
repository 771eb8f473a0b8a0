"""`hvd-compress doctor`: what is installed here, which front ends work, and what mends the others?"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from hvd_compress.cli import findings, front_ends, probes
from hvd_compress.cli.findings import Finding
from hvd_compress.cli.front_ends import FrontEnd
from hvd_compress.cli.probes import Result


@click.command("doctor", help="List what is installed, which front ends work, and what mends the others.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(as_json: bool) -> None:
    results = probes.run_all()
    found, ends = examine(results), front_ends.found(results)
    obstacles = [finding.name for finding in found if finding.required and finding.state == "missing"]
    runs = not obstacles and any(end.works for end in ends)
    if as_json:
        report = {
            "training_can_run": runs,
            "findings": [asdict(finding) for finding in found],
            "front_ends": [asdict(end) for end in ends],
        }
        click.echo(json.dumps(report, indent=2))
    else:
        _print_findings(found)
        _print_front_ends(ends)
        click.echo(_verdict(found, ends, obstacles))
    sys.exit(0 if runs else 1)


def examine(results: Mapping[str, Result]) -> list[Finding]:
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


def _verdict(found: Sequence[Finding], ends: Sequence[FrontEnd], obstacles: Sequence[str]) -> str:
    if obstacles:
        return f"Training cannot run without: {', '.join(obstacles)}."
    if not any(end.works for end in ends):
        return "Training cannot run: no front end works."
    if any(finding.name == "Horovod" and finding.state != "ok" for finding in found):
        return "Training can run over torch.distributed, but not by hvd_compress.torch, which needs Horovod."
    return "Training can run."


def _print_findings(found: Sequence[Finding]) -> None:
    rows = [(finding.name, finding.state, finding.detail, finding.hint) for finding in found]
    _print_table(("part", "state", "what was found, and what to do"), rows)


def _print_front_ends(ends: Sequence[FrontEnd]) -> None:
    rows = [(end.name, "works" if end.works else "no", end.detail, end.remedy) for end in ends]
    _print_table(("front end", "", "what was tried, and what mends it"), rows)


def _print_table(columns: tuple[str, str, str], rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Print rows of name, state, detail and what to do, which may be nothing."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "works": "green", "missing": "red", "no": "yellow", "note": "yellow"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(columns[0], no_wrap=True)
    table.add_column(columns[1], no_wrap=True)
    table.add_column(columns[2], overflow="fold")
    for name, state, detail, hint in rows:
        words = f"{detail}\n-> {hint}" if hint else detail
        # Text, as paths and error messages may contain what rich takes for markup.
        table.add_row(Text(name), Text(state, colours[state]), Text(words))
    Console().print(table)
