"""`hvd-compress probe`: what the network of this job does, measured under mpirun."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING

import click

from hvd_compress.engines.mpi_environment import launched_by_mpi, prepare
from hvd_compress.errors import ConfigError, HvdCompressError
from hvd_compress.units import parse_latency

if TYPE_CHECKING:
    from hvd_compress.cost.curves import Curves
    from hvd_compress.cost.store import JobShape
    from hvd_compress.engines.base import Engine


@click.command("probe", help="Measure this job's network, under mpirun: alpha, beta, curves.")
@click.option("--budget", default="3s", show_default=True, help="How long to measure, with its unit.")
@click.option("--timeout", default="60s", show_default=True, help="How long to wait beyond that for other ranks.")
@click.option("--save/--no-save", default=True, help="Keep the curves for jobs of the same shape.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(budget: str, timeout: str, save: bool, as_json: bool) -> None:
    """Every rank runs this; rank 0 prints."""
    budget_s, timeout_s = parse_latency(budget, "--budget", "3s"), parse_latency(timeout, "--timeout", "60s")
    engine = _engine()
    curves, shape = _measured(engine, budget_s, timeout_s)
    if engine.rank == 0:
        if save:
            _save(curves, shape)
        _print(curves, shape, as_json)


def _engine() -> Engine:
    if not launched_by_mpi():
        raise ConfigError(
            "the network is measured between the ranks of an MPI job: launch it as "
            "`mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none hvd-compress probe`"
        )
    prepare()
    from hvd_compress.engines.mpi import MpiEngine

    return MpiEngine()


def _measured(engine: Engine, budget_s: float, timeout_s: float) -> tuple[Curves, JobShape]:
    """Measure in a thread of its own, so that a rank that never reports ends in an error."""
    from hvd_compress.session.worker import Worker

    worker = Worker("hvd-compress-probe")
    future = worker.submit(lambda: _curves(engine, budget_s))
    try:
        return future.result(min(budget_s + timeout_s, threading.TIMEOUT_MAX))
    except FutureTimeout:
        engine.abandon()
        waited = f"rank {engine.rank} waited {budget_s + timeout_s:g} s in {engine.pending}"
        raise click.ClickException(f"{waited}: another rank has died, is stopped, or reports nothing") from None
    except HvdCompressError as error:
        engine.abandon()
        raise click.ClickException(f"rank {engine.rank}, {engine.pending}: {error}") from error
    except BaseException:  # such as Ctrl-C: others are in the middle of a collective
        engine.abandon()
        raise


def _curves(engine: Engine, budget_s: float) -> tuple[Curves, JobShape]:
    """Measure every algorithm that the engine can force, and "auto"."""
    from hvd_compress.cost.calibrate import Calibrator
    from hvd_compress.cost.store import job_shape
    from hvd_compress.papers.espresso.profiler.system import SAMPLES, SIZES

    engine.locate()  # as a session does: what "auto" is depends on who shares a host
    verbs = ("broadcast", "allreduce", "allgather")
    keys = [(verb, name) for verb in verbs for name in ("auto", *engine.capabilities.forcible(verb))]
    return Calibrator(engine, keys, budget_s, SIZES, SAMPLES).run(), job_shape(engine)


def _save(curves: Curves, shape: JobShape) -> None:
    from hvd_compress.cost.store import save

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(curves, shape)
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)


def _print(curves: Curves, shape: JobShape, as_json: bool) -> None:
    import dataclasses

    from hvd_compress.profiler.curves import fit

    alpha, beta = fit(curves)
    if as_json:
        found = {"shape": dataclasses.asdict(shape), "alpha_s": alpha, "beta_s_per_byte": beta}
        click.echo(json.dumps({**found, "curves": curves.to_json()}, indent=1))
        return
    rate = f"{8e-6 / beta:.0f} Mbit/s" if beta else "not to be seen"
    hosts = len(set(shape.hosts))
    click.echo(f"{shape.world_size} ranks on {hosts} host{'s' * (hosts > 1)}, {shape.library}")
    click.echo(f"alpha {1e3 * alpha:.4g} ms, 1 / beta {rate}: what brings the formulas nearest to these curves")
    sizes = sorted({size for curve in curves.by_key.values() for size in curve.sizes})
    click.echo("\nmilliseconds by bytes of a rank's tensor; ~ marks what was not measured but follows from the curve")
    click.echo(f"{'':<28}" + "".join(f"{_short(size):>10}" for size in sizes))
    for (verb, algorithm), curve in curves.by_key.items():
        cells = [f"{'' if size in curve.sizes else '~'}{1e3 * curve.seconds(size):.3g}" for size in sizes]
        click.echo(f"{verb + ' ' + algorithm:<28}" + "".join(f"{cell:>10}" for cell in cells))
    sys.stdout.flush()


def _short(size: int) -> str:
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB"
