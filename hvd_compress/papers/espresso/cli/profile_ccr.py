"""`hvd-compress profile --ccr`: what a training's backward pass can hide of its exchanges."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from hvd_compress.papers.espresso.cli.programs import run_program
from hvd_compress.services.ccr import LONGEST_INTERVAL, interval_of

NOT_SEEN = (
    "no ratio: no optimizer of hvd_compress.torch with a compression of this package, and no model after "
    "hvd_compress.ddp's compress(), has exchanged {steps} steps after the first {skip} in which nothing is tried. "
    "Where ranks run on other hosts, mpirun passes variables with -x HVD_COMPRESS_CCR -x HVD_COMPRESS_CCR_STEPS "
    "-x HVD_COMPRESS_CCR_SKIP, and rank 0 runs on this one"
)


def run(program: Sequence[str], steps: int, skip: int, stop: bool) -> int:
    """Run a training, print its ratio, and return the exit code.

    Raises ConfigError where the program cannot be started.
    """
    with TemporaryDirectory(prefix="hvd-compress-ccr-") as folder:
        file = Path(folder, "ccr.json")
        variables = {"": str(file), "_STEPS": str(steps), "_SKIP": str(skip)}
        environment = {**os.environ, **{f"HVD_COMPRESS_CCR{name}": value for name, value in variables.items()}}
        status, stopped = run_program(program, environment, file.exists, stop)
        if not file.exists() and status:
            click.echo(f"Error: no ratio: the program has ended with exit code {status} before it was found", err=True)
            return status
        if not file.exists():
            click.echo(f"Error: {NOT_SEEN.format(steps=steps, skip=skip)}", err=True)
            return 2
        _print(json.loads(file.read_text()))
    return 0 if stopped else status


def _print(found: Mapping[str, Any]) -> None:
    communicate_ms, backward_ms = 1e3 * found["communicate_s"], 1e3 * found["backward_s"]
    click.echo(
        f"CCR {found['ratio']:.3g}: {communicate_ms:.4g} ms of exchanges beside a backward pass of {backward_ms:.4g} "
        f"ms on the slowest rank; {found['steps']} steps"
    )
    click.echo(f"by the clock of each rank, with its waits for others: {found['naive']:.3g}")
    click.echo(f"to find it has taken {found['lost_s']:.2g} s of the training at most")
    click.echo("one rank exchanges nothing: run as many as train" if found["ranks"] == 1 else _advice(found["ratio"]))


def _advice(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "no backward pass was seen: gradients of the training come from somewhere else"
    if ratio <= 1:
        return "the backward pass hides them as they are"
    if ratio <= LONGEST_INTERVAL:
        return f"where gradients travel dense, Compression.covap({interval_of(ratio)}) lets it hide them"
    return f"to hide them takes an interval of {math.ceil(ratio)}, too long to train with: send less in each step"
