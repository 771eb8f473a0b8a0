"""hvd-compress netlab: an emulated network of hosts, from the command line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import click

from hvd_compress.cli.suggesting import Group
from hvd_compress.errors import CommunicationError, HvdCompressError, shortened
from hvd_compress.netlab import Lab, Schedule, places
from hvd_compress.netlab.lab import change

_LATENCY = click.option("--latency", help="Of one way between two hosts, such as 4ms.")
_BANDWIDTH = click.option("--bandwidth", help="Of each host, in each direction, such as 1gbit.")
_INTERRUPTED = 128 + signal.SIGINT


@click.group(cls=Group)
def command() -> None:
    """Emulate a network of hosts on this machine, and run jobs on it. Needs root."""


@command.command(context_settings={"allow_interspersed_args": False}, short_help="Run an MPI job on emulated hosts.")
@click.option("--hosts", default=4, show_default=True, type=int, help="Up to 64.")
@click.option("--slots", default=1, show_default=True, type=int, help="Ranks on each host.")
@_LATENCY
@_BANDWIDTH
@click.option("--schedule", help="A file that says how the network changes, or c1, c2, c1-lab, c2-lab.")
@click.option("--epoch-s", type=float, help="Seconds of an epoch, for a schedule that counts epochs.")
@click.option("--name", help="By which `set` shall know the lab.")
@click.option("--jitter", default="0s", show_default=True, help="By so much later, at most, a frame arrives.")
@click.option("--loss", default=0.0, show_default=True, help="The share of packets that is lost, such as 0.01.")
@click.option("--own-cores", is_flag=True, help="A core for each host, instead of all cores for all.")
@click.option("--linux-tcp", is_flag=True, help="TCP as Linux has it: windows open slowly, and again after a pause.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    hosts: int, slots: int, latency: str | None, bandwidth: str | None,
    schedule: str | None, epoch_s: float | None, name: str | None,
    jitter: str, loss: float, own_cores: bool, linux_tcp: bool, program: tuple[str, ...],
) -> None:  # fmt: skip
    """Run PROGRAM as an MPI job on hosts that are connected by an emulated network.

    Ends with the exit code of the job. Write -- before PROGRAM. Without --schedule, --latency and --bandwidth are
    needed; with one, it says both.
    """
    # What ends this process by a signal ends the job in order, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with _refusals():
        changes = Schedule.read(schedule).in_seconds(epoch_s) if schedule else None
        if changes and (latency or bandwidth):
            raise click.UsageError("--schedule takes the place of --latency and --bandwidth")
        if not changes and not (latency and bandwidth):
            raise click.UsageError("give --latency and --bandwidth, or --schedule")
        first = (latency or "0s", bandwidth or "1gbit")
        with Lab(
            hosts, *first, slots=slots, name=name, jitter=jitter, loss=loss, own_cores=own_cores, linux_tcp=linux_tcp
        ) as lab:
            click.echo(f"lab {lab.name}: {hosts} hosts; `hvd-compress netlab set` changes it", err=True)
            with lab.following(changes) if changes else nullcontext():
                try:
                    status = lab.run(program).returncode
                except KeyboardInterrupt:
                    status = _INTERRUPTED
    sys.exit(status)


@command.command("set")
@_LATENCY
@_BANDWIDTH
@click.option("--host", type=int, help="Only this one, 1 being the first; all otherwise.")
@click.option("--lab", help="Its name; not needed within its job, or where only one runs.")
def set_(latency: str | None, bandwidth: str | None, host: int | None, lab: str | None) -> None:
    """Change the network of a running lab."""
    if latency is None and bandwidth is None:
        raise click.UsageError("give --latency, --bandwidth, or both")
    with _refusals():
        change(places.find(lab), latency, bandwidth, host)


@command.command("list")
def list_() -> None:
    """Print the names of the labs that run."""
    with _refusals():
        for name in places.running():
            click.echo(name)


@command.command(short_help="Measure what an emulated network carries here.")
@click.option("--hosts", default=4, show_default=True, type=click.IntRange(min=2), help="Up to 64.")
@click.option("--latency", default="1ms", show_default=True, help="Of one way between two hosts.")
@click.option("--bandwidth", default="1gbit", show_default=True, help="Of each host, in each direction.")
@click.option("--seconds", default=2, show_default=True, type=click.IntRange(1, 3600), help="How long hosts send.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(hosts: int, latency: str, bandwidth: str, seconds: int, as_json: bool) -> None:
    """Measure what a lab of this size carries here, beside what was asked for.

    Every host sends to the next one as fast as it can, all at once: plain TCP, no MPI. How many hosts a machine can
    carry at a bandwidth depends on its processors, which sender, receiver and relay share.
    """
    from hvd_compress.netlab.check import measure

    with _refusals(), Lab(hosts, latency, bandwidth) as lab:
        asked = lab.status().links[0]
        figures = measure(lab, seconds)
        status = lab.status()
    mbit = [8e-6 * rate for rate in figures.bytes_per_s]
    report = {
        "hosts": hosts,
        "asked_latency_ms": 1e3 * asked.latency_s,
        "idle_latency_ms": 1e3 * figures.idle_latency_s,
        "loaded_latency_ms": None if figures.loaded_latency_s is None else 1e3 * figures.loaded_latency_s,
        "asked_mbit": 8e-6 * asked.bytes_per_s,
        "lowest_mbit": min(mbit),
        "mean_mbit": sum(mbit) / len(mbit),
        "late_percent": 100 * status.late_share,
        "latest_ms": 1e3 * status.latest_s,
        "lost_frames": status.lost_frames,
        "realtime": status.is_realtime,
    }
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    for what, value in report.items():
        click.echo(f"{what:18} {value:.3f}" if isinstance(value, float) else f"{what:18} {value}")


@contextmanager
def _refusals() -> Iterator[None]:
    """Our errors are one sentence for the user: 2 for what was asked wrongly, 1 for what broke."""
    try:
        yield
    except HvdCompressError as error:
        click.echo(f"Error: {shortened(str(error))}", err=True)
        sys.exit(1 if isinstance(error, CommunicationError) else 2)
