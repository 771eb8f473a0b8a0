"""The profile of a job, beside the exchange of its gradients: every rank counts the same steps, and rank 0 writes."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from hvd_compress import __version__
from hvd_compress.buckets.real import element_dtype, gradient_shape
from hvd_compress.compressors import Compressor, TopK
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError, HvdCompressError, PlanError
from hvd_compress.frontends.recorded import release
from hvd_compress.measuring import machine
from hvd_compress.papers.espresso.profiler.compressor import (
    compressor_named,
    measure_compressor,
    require_payloads,
    sizes_of,
)
from hvd_compress.papers.espresso.profiler.folder import RUN, Claim
from hvd_compress.papers.espresso.profiler.model import model_profile
from hvd_compress.papers.espresso.profiler.settings import ProfileSettings
from hvd_compress.papers.espresso.profiler.system import measure_system, require_measurable
from hvd_compress.profiler.profiles import (
    COMPRESSOR,
    MODEL,
    PROGRESS,
    SYSTEM,
    CompressorProfile,
    Device,
    ModelProfile,
    SystemProfile,
    write,
)
from hvd_compress.request.request import Request
from hvd_compress.services.base import Service, Watched
from hvd_compress.session.clocks import clock_of, device_of
from hvd_compress.session.gradient_times import Recorder

MEASUREMENTS = 4
"""At most: of the compressor on two devices, and of two links."""
DEFAULT = TopK(0.01)
"""Measured where the request compresses nothing."""

log = logging.getLogger("hvd_compress")


@dataclass(frozen=True)
class Measured:
    """What ranks have measured, or what has kept one of them from it, in words that all ranks have."""

    compressor: CompressorProfile | None = None
    system: SystemProfile | None = None
    obstacle: str = ""


class JobProfile(Service):
    """Records the steps of a job, and then has its ranks measure the compressor and the network.

    Whatever keeps it from a profile, the step that is over counts on all ranks, and its gradients are applied. Training
    goes on, but where a collective has failed: then the next exchange is an error on all ranks, as after any other.

    Buckets are held back until then.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], settings: ProfileSettings, request: Request, budget_s: float
    ) -> None:
        """Begin to watch gradients.

        Args:
            parameters: those that are trained, by name.
            request: how they travel.
            budget_s: seconds of each measurement afterwards: the compressor on each device, and each link.

        Raises:
            ConfigError: there is no such compressor.
            UnsupportedError: it has no payload by itself, or parameters lie on several devices.
        """
        self._session: Watched
        self._settings, self._budget_s = settings, budget_s
        self._compressor = _compressor(settings, request)
        require_payloads(self._compressor)
        self._device = device_of(parameters.values())
        self._shapes = {name: gradient_shape(parameter) for name, parameter in parameters.items()}
        self._dtypes = {name: element_dtype(parameter) for name, parameter in parameters.items()}
        self._recorder = Recorder(parameters, clock_of(self._device), settings.steps)
        self._count, self.holds_back, self._writes = 0, True, False
        self._claim: Claim | None = None
        self._told_unwritable = False

    def fingerprint(self) -> Mapping[str, str]:
        steps = f"{self._settings.skip} + {self._settings.steps} steps"
        return {"HVD_COMPRESS_PROFILE": f"a profile of {steps} with {self._compressor}"}

    def met(self, engine: Engine) -> None:
        """Take the folder. Collective.

        Raises:
            UnsupportedError: as require_measurable().
            ConfigError: another run has the folder; on all ranks alike.
        """
        if not self.holds_back:  # it has its profile, and ranks meet again
            return
        require_measurable(engine)
        self._writes = engine.ranks[engine.rank] == 0  # not the first one of another process set
        obstacles = engine.allgather_json(self._take_folder() if self._writes else "")
        if any(obstacles):
            raise ConfigError(f"HVD_COMPRESS_PROFILE: {next(filter(None, obstacles))}")
        self._tell_progress()

    def opened(self, session: Watched) -> None:
        self._session = session

    def ended(self) -> None:
        """Count a step; after the last one measure, write, and end."""
        if not self.holds_back:
            return
        self._count += 1
        self._tell_progress()
        self._recorder.end_step(exchanged=True)
        if self._count < self._settings.skip + self._settings.steps:
            return
        self._recorder.close()
        self.holds_back = False
        try:
            measured = self._session.launch(
                self._measure, "profile of compressor and network", MEASUREMENTS * self._budget_s
            )()
        except HvdCompressError as error:  # the next exchange raises it; raised here, ranks would differ by a step
            measured = Measured(obstacle=f"{error}; nothing can be exchanged any more")
        if self._writes and not measured.obstacle:
            measured = replace(measured, obstacle=self._write(measured))
        if measured.obstacle:
            log.warning("hvd_compress: there is no profile: %s", measured.obstacle)
            self._tell_progress(measured.obstacle)
        self._leave_folder()

    def close(self) -> None:
        """Record no more; another optimizer of this process may be profiled if this one was not."""
        self._recorder.close()
        self._leave_folder()
        if self.holds_back:
            self.holds_back = False
            release()

    def _measure(self, engine: Engine) -> Measured:
        """Measure; what rank 0 finds counts. Collective.

        On a CPU all ranks compress at once, as they do in a step. A GPU belongs to one rank, and the host beside it
        serves one rank after the other: there rank 0 measures alone. Where a rank cannot compress, all of them know.
        """
        found, obstacle, source = None, "", ""
        with engine.aside():
            engine.allgather_json(None)  # begin together
            try:
                source = self._source(engine)
                found = self._measure_compressor(engine.rank, source)
            except Exception as error:  # such as of memory: no collective has begun, so that training can go on
                obstacle = f"rank {engine.job_rank} cannot measure {self._compressor}: {type(error).__name__}: {error}"
            told = [each for each in engine.allgather_json(obstacle) if each]
            if told:
                return Measured(obstacle="; ".join(told))
            system = measure_system(engine, self._budget_s, source) if engine.world_size > 1 else None
        return Measured(found, system)

    def _measure_compressor(self, rank: int, source: str) -> CompressorProfile | None:
        devices: dict[Device, torch.device] = {"training": self._device}
        if self._device.type == "cuda":
            if rank > 0:
                return None
            devices["host"] = torch.device("cpu")
        sizes = sizes_of([max(1, torch.Size(shape).numel()) for shape in self._shapes.values()])
        return measure_compressor(self._compressor, sizes, devices, budget_s=self._budget_s, source=source)

    def _source(self, engine: Engine) -> str:
        where = f"rank 0 of {engine.world_size} on {len(set(engine.hosts))} host(s), engine {engine.name}"
        return f"hvd_compress {__version__} profile, {where}; {machine()}, {torch.get_num_threads()} thread(s)"

    def _write(self, measured: Measured) -> str:
        """Write what was found, the model last. Return why that cannot be, or nothing: it ends no training."""
        compressor, system, folder = measured.compressor, measured.system, self._settings.folder
        assert compressor is not None
        assert self._claim is not None
        try:
            model = model_profile(
                Path(sys.argv[0]).stem or "model",
                self._shapes,
                self._recorder.times(),
                self._recorder.sparse,
                compressor.source,
                self._dtypes,
            )
            write_profile(self._claim, model, compressor, system)
        except Exception as error:  # of any kind: other ranks train on, and wait for this one
            return str(error) if isinstance(error, HvdCompressError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            (folder / PROGRESS).unlink(missing_ok=True)
        log.warning(
            "hvd_compress: the profile is complete, and training goes on: %s in %s%s",
            ", ".join((MODEL, COMPRESSOR, *([SYSTEM] if system else []))),
            folder,
            "" if system else f"; one rank has no network to measure: write {SYSTEM} by hand",
        )
        return ""

    def _tell_progress(self, obstacle: str = "") -> None:
        """Say how far this is. Where that cannot be written, it is told once, and tried again at the next step."""
        if not self._writes:
            return
        folder, steps = self._settings.folder, self._settings.skip + self._settings.steps
        said = {"steps": self._count, "of": steps, **({"obstacle": obstacle} if obstacle else {})}
        assert self._claim is not None
        try:
            require_held(self._claim)
            (folder / PROGRESS).write_text(json.dumps(said))
        except (OSError, PlanError) as error:
            if not self._told_unwritable:
                log.warning("hvd_compress: cannot write to HVD_COMPRESS_PROFILE = %s: %s", folder, error)
            self._told_unwritable = True

    def _take_folder(self) -> str:
        """Return what keeps this run from its folder, or nothing."""
        try:
            self._claim = Claim(self._settings.folder, RUN, self._settings.command)
        except ConfigError as error:
            return str(error)
        return ""

    def _leave_folder(self) -> None:
        if self._claim is not None:
            self._claim.release()


def write_profile(
    claim: Claim, model: ModelProfile, compressor: CompressorProfile, system: SystemProfile | None
) -> None:
    """Write the files of a profile into a folder that this run has, with its id. They take the place of earlier ones.

    The file of the model is the last one. Raises PlanError where one cannot be written: then earlier ones stay, unless
    it is because of a folder of such a name; or where the folder is not the one that was claimed.
    """
    folder, files = claim.folder, {SYSTEM: system, COMPRESSOR: compressor, MODEL: model}
    require_held(claim)
    try:
        with TemporaryDirectory(dir=folder, prefix=".draft-") as drafts:
            for name, profile in files.items():
                if profile is not None:
                    write(Path(drafts, name), profile.model_copy(update={"run": claim.run}))
            require_held(claim)
            if system is None:  # that of an earlier job is none of this one
                (folder / SYSTEM).unlink(missing_ok=True)
            for name, profile in files.items():
                if profile is not None:
                    Path(drafts, name).replace(folder / name)
    except OSError as error:
        raise PlanError(f"cannot write the profile {folder}: {error.strerror}") from None


def require_held(claim: Claim) -> None:
    """Raise PlanError where a folder is not the one that was claimed: another run may have what lies there now."""
    if not claim.holds:
        raise PlanError(f"the folder {claim.folder} was removed while this run recorded, and is not its own any more")


def _compressor(settings: ProfileSettings, request: Request) -> Compressor:
    if settings.compressor:
        return compressor_named(settings.compressor)
    return request.compressor if request.compressor.compresses else DEFAULT
