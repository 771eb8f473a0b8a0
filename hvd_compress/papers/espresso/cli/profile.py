"""`hvd-compress profile`: record the planner's inputs while a training runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from click.core import ParameterSource

from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.papers.espresso.cli.programs import run_program
from hvd_compress.papers.espresso.profiler.settings import DEFAULT_STEPS
from hvd_compress.settings import DEFAULT_CCR_STEPS, MOST_STEPS

NOT_SEEN = (
    "no optimizer of hvd_compress.torch with a compression of this package, and no model after hvd_compress.ddp's "
    "compress(), has begun to exchange gradients. Where ranks run on other hosts, mpirun passes variables with -x "
    "HVD_COMPRESS_PROFILE -x HVD_COMPRESS_PROFILE_STEPS -x HVD_COMPRESS_PROFILE_SKIP "
    "-x HVD_COMPRESS_PROFILE_COMPRESSOR -x HVD_COMPRESS_PROFILE_RUN"
)


@click.command("profile", context_settings={"allow_interspersed_args": False})
@click.option("--steps", type=click.IntRange(1, MOST_STEPS), help="That are recorded.  [default: 100; 3 with --ccr]")
@click.option(
    "--skip", default=10, show_default=True, type=click.IntRange(0, MOST_STEPS), help="Before them, that are not."
)
@click.option("--compressor", default="", metavar="NAME:SETTINGS",
              help="To measure: a name of `hvd-compress list` or of a plan, and settings: topk:ratio=0.05, int4. By "
              "default that of the training.")  # fmt: skip
@click.option("--ccr", is_flag=True, help="Say what the backward pass can hide of the exchanges, and write nothing.")
@click.option("--stop", is_flag=True, help="End the command when the profile is complete.")
@click.option("-o", "--output", "folder", default="profile", show_default=True, help="Folder for the files.",
              type=click.Path(file_okay=False, path_type=Path))  # fmt: skip
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    steps: int | None,
    skip: int,
    compressor: str,
    ccr: bool,
    stop: bool,
    folder: Path,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM, a training with hvd_compress.torch or hvd_compress.ddp, and record what the planner needs.

    It writes model.json, compressor.json and, with several ranks, system.json. Write -- before PROGRAM, which may begin
    with mpirun, horovodrun or torchrun. The compressor is by default that of the training. While steps are recorded
    gradients are exchanged after the backward pass, and not beside it; what is trained is the same.

    With --ccr it only compares ranks in a few steps, and says their communication-to-computation ratio (CCR): the
    interval of Compression.covap() that lets the backward pass hide the exchanges.

    Ends with the exit code of PROGRAM; with 2 where that is 0 and there is no profile.
    """
    if ccr:
        from hvd_compress.papers.espresso.cli.profile_ccr import run as run_ccr

        if compressor:
            raise ConfigError("--compressor is measured for a profile, and --ccr looks at what the training sends")
        if context.get_parameter_source("folder") is ParameterSource.COMMANDLINE:
            raise ConfigError("--output is the folder of a profile, and --ccr writes nothing")
        sys.exit(run_ccr(program, steps or DEFAULT_CCR_STEPS, skip, stop))
    steps = steps or DEFAULT_STEPS
    if compressor:
        from hvd_compress.compression.named import compressor_named
        from hvd_compress.papers.espresso.profiler.compressor import require_payloads

        require_payloads(compressor_named(compressor))
    variables = {"": os.path.abspath(folder), "_STEPS": str(steps), "_SKIP": str(skip), "_COMPRESSOR": compressor}
    with _claimed(folder) as run:
        variables["_RUN"] = run
        environment = {**os.environ, **{f"HVD_COMPRESS_PROFILE{name}": value for name, value in variables.items()}}
        files = Files(folder, run)
        status, stopped = run_program(program, environment, lambda: files.complete, stop)
        if not files.complete:
            click.echo(f"Error: no profile: {files.obstacle(skip + steps, status)}", err=True)
            sys.exit(status or 2)
        _print(folder)
        sys.exit(0 if stopped else status)


@contextmanager
def _claimed(folder: Path) -> Iterator[str]:
    """In the block no other run of this command has the folder, nor had a job before; yield the id of this one.

    Raises ConfigError.
    """
    from hvd_compress.papers.espresso.profiler.folder import COMMAND, RUN, Claim
    from hvd_compress.profiler.profiles import PROGRESS

    with Claim(folder, COMMAND) as own:
        Claim(folder, RUN, own.run).release()  # the job that is run takes it
        try:
            yield own.run
        finally:
            if own.holds:
                with suppress(OSError):
                    (folder / PROGRESS).unlink()
                if (folder / RUN).exists():  # that of a job that was ended
                    with suppress(ConfigError):
                        Claim(folder, RUN, own.run).release()


class Files:
    """The files of a profile, of which some may be of an earlier run."""

    def __init__(self, folder: Path, run: str) -> None:
        """`run`: the id of this command. Raises ConfigError where files cannot be written there."""
        from hvd_compress.profiler.profiles import MODEL, PROGRESS

        self._folder, self._model, self._progress = folder, folder / MODEL, folder / PROGRESS
        self._run = run
        try:
            self._progress.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write to the folder {folder}: {error.strerror}") from None
        self._before = self._seen = self._stamp()
        self._complete = False

    @property
    def complete(self) -> bool:
        """Whether the job of this command has written all of them: the model is the last one."""
        from hvd_compress.papers.espresso.profiler.folder import is_of
        from hvd_compress.profiler.profiles import ModelProfile, read

        if (stamp := self._stamp()) != self._seen:
            self._seen, self._complete = stamp, False
            with suppress(PlanError):
                self._complete = is_of(read(self._model, ModelProfile).run, self._run)
        return self._complete

    def obstacle(self, steps: int, status: int) -> str:
        """Return in words why a run of a number of steps, which ended with an exit code, has no profile."""
        from hvd_compress.papers.espresso.profiler.folder import unwritable

        try:
            said = json.loads(self._progress.read_text())
            seen, of, told = said["steps"], said["of"], said.get("obstacle", "")
            if not (isinstance(seen, int) and isinstance(of, int) and isinstance(told, str) and 0 <= seen <= of):
                raise ValueError
            steps = of
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):  # not from a job of ours
            seen, told = 0, NOT_SEEN
        with suppress(OSError):
            self._progress.unlink()
        words = f"{seen} of {steps} steps were seen"
        if self._seen not in (None, self._before):
            return f"{words}, and another run has written into the folder {self._folder}: name another with -o"
        if why := unwritable(self._folder):
            return f"{words}, and the folder {self._folder} cannot be written any more ({why}): name another with -o"
        if status and told in ("", NOT_SEEN):
            return f"PROGRAM ended with exit code {status} after {seen} of {steps} steps; its output above says why"
        if told:
            return f"{words}: {told}"
        if seen == steps:
            return f"{words}, and PROGRAM ended before compressor and network were measured: train longer"
        return f"{words}: train longer, or pass smaller --steps and --skip"

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._model.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


def _print(folder: Path) -> None:
    """Say what was found."""
    from hvd_compress.profiler.profiles import (
        COMPRESSOR,
        MODEL,
        SYSTEM,
        CompressorProfile,
        ModelProfile,
        SystemProfile,
        read,
    )

    model, compressor = read(folder / MODEL, ModelProfile), read(folder / COMPRESSOR, CompressorProfile)
    backward_us = sum(tensor.backward_us for tensor in model.tensors)
    elements = sum(tensor.numel for tensor in model.tensors)
    click.echo(
        f"{folder / MODEL}: {len(model.tensors)} tensors, {elements:,} elements, {model.steps} steps; forward "
        f"{1e-3 * model.forward_us:.3g} ms, backward {1e-3 * backward_us:.3g} ms"
    )
    deviation_us = sum(tensor.backward_us_sd or 0.0 for tensor in model.tensors)
    if deviation_us > backward_us:
        click.echo(
            f"warning: these times vary by more than they are (standard deviations add up to {1e-3 * deviation_us:.3g} "
            "ms): other work shares the machine; profile again when it is idle, or with more --steps",
            err=True,
        )
    largest = max(tensor.numel for tensor in model.tensors)
    for device, times in compressor.devices.items():
        both = (1e3 * curve.curve().seconds(largest) for curve in (times.compress, times.decompress))
        words = "compress {:.3g} ms, decompress {:.3g} ms".format(*both)
        click.echo(
            f"{folder / COMPRESSOR}: {compressor.compressor['name']}, {device}: {words} for {largest:,} elements"
        )
    if (folder / SYSTEM).exists():
        system = read(folder / SYSTEM, SystemProfile)
        links = {"within": system.within, "across": system.across}
        used = [name for name, ranks in zip(links, (system.ranks_per_host, system.hosts), strict=True) if ranks > 1]
        words = "; ".join(
            f"{name}: alpha {links[name].alpha_us:.3g} us, {1e-9 * links[name].bytes_per_s:.3g} GB/s" for name in used
        )
        click.echo(f"{folder / SYSTEM}: {system.hosts} host(s) of {system.ranks_per_host} rank(s); {words}")
