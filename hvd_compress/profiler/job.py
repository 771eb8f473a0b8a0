"""The profile of a job, beside the exchange of its gradients: every rank counts the same steps, and rank 0 writes."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from hvd_compress import __version__
from hvd_compress.bench.machine import machine
from hvd_compress.compressors import Compressor, TopK
from hvd_compress.decision import Request
from hvd_compress.engines.base import Engine
from hvd_compress.errors import PlanError, UsageError
from hvd_compress.planner.profiles import (
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
from hvd_compress.policies.base import Launch
from hvd_compress.profiler.clocks import clock_of, device_of
from hvd_compress.profiler.compressor import compressor_named, measure_compressor, require_payloads, sizes_of
from hvd_compress.profiler.model import model_profile
from hvd_compress.profiler.recorder import Recorder
from hvd_compress.profiler.system import measure_system, require_measurable
from hvd_compress.settings import ProfileSettings, Settings

MEASUREMENTS = 4
"""At most: of the compressor on two devices, and of two links."""
DEFAULT = TopK(0.01)
"""Measured where the request compresses nothing."""

log = logging.getLogger("hvd_compress")


class JobProfile:
    """Records the steps of a job, and then has its ranks measure the compressor and the network.

    Attributes:
        active: until then.
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
        self._settings, self._budget_s = settings, budget_s
        self._compressor = _compressor(settings, request)
        require_payloads(self._compressor)
        self._device = device_of(parameters.values())
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self._recorder = Recorder(parameters, clock_of(self._device), settings.steps)
        self._count, self.active, self._writes = 0, True, False

    def fingerprint(self) -> Mapping[str, str]:
        steps = f"{self._settings.skip} + {self._settings.steps} steps"
        return {"HVD_COMPRESS_PROFILE": f"a profile of {steps} with {self._compressor}"}

    def prepare(self, engine: Engine) -> None:
        require_measurable(engine)
        self._writes = engine.ranks[engine.rank] == 0  # not the first one of another process set
        self._tell_progress()

    def end_step(self, launch: Launch) -> None:
        """Count a step; after the last one measure, write, and end."""
        self._count += 1
        self._tell_progress()
        self._recorder.end_step(exchanged=True)
        if self._count < self._settings.skip + self._settings.steps:
            return
        self._recorder.close()
        self.active = False
        measured = launch(self._measure, "profile of compressor and network", MEASUREMENTS * self._budget_s)()
        if self._writes:
            self._write(*measured)

    def close(self) -> None:
        """Record no more; another optimizer of this process may be profiled if this one was not."""
        self._recorder.close()
        if self.active:
            self.active = False
            _release()

    def _measure(self, engine: Engine) -> tuple[CompressorProfile | None, SystemProfile | None]:
        """Measure; what rank 0 finds counts. Collective.

        On a CPU all ranks compress at once, as they do in a step. A GPU belongs to one rank, and the host beside it
        serves one rank after the other: there rank 0 measures alone.
        """
        numels = [max(1, torch.Size(shape).numel()) for shape in self._shapes.values()]
        devices: dict[Device, torch.device] = {"training": self._device}
        found, source, on_gpu = None, self._source(engine), self._device.type == "cuda"
        if on_gpu:
            devices["host"] = torch.device("cpu")
        with engine.aside():
            engine.allgather_json(None)  # begin together
            if not on_gpu or engine.rank == 0:
                with torch.cuda.device(self._device) if on_gpu else nullcontext():
                    found = measure_compressor(
                        self._compressor, sizes_of(numels), devices, budget_s=self._budget_s, source=source
                    )
            engine.allgather_json(None)
            system = measure_system(engine, self._budget_s, source) if engine.world_size > 1 else None
        return found, system

    def _source(self, engine: Engine) -> str:
        where = f"rank 0 of {engine.world_size} on {len(set(engine.hosts))} host(s), engine {engine.name}"
        return f"hvd_compress {__version__} profile, {where}; {machine()}, {torch.get_num_threads()} thread(s)"

    def _write(self, compressor: CompressorProfile | None, system: SystemProfile | None) -> None:
        """Write what was found, the model last. What cannot be written or was not seen ends no training."""
        assert compressor is not None
        folder = self._settings.folder
        try:
            model = model_profile(
                Path(sys.argv[0]).stem or "model",
                self._shapes,
                self._recorder.times(),
                self._recorder.sparse,
                compressor.source,
            )
            write_profile(folder, model, compressor, system)
        except (PlanError, UsageError) as error:
            log.warning("hvd_compress: there is no profile: %s", error)
            return
        (folder / PROGRESS).unlink(missing_ok=True)
        log.warning(
            "hvd_compress: the profile is complete, and training goes on: %s in %s%s",
            ", ".join((MODEL, COMPRESSOR, *([SYSTEM] if system else []))),
            folder,
            "" if system else f"; one rank has no network to measure: write {SYSTEM} by hand",
        )

    def _tell_progress(self) -> None:
        if not self._writes:
            return
        try:
            said = {"steps": self._count, "of": self._settings.skip + self._settings.steps}
            (self._settings.folder / PROGRESS).write_text(json.dumps(said))
        except OSError as error:
            log.warning("hvd_compress: cannot write to HVD_COMPRESS_PROFILE = %s: %s", self._settings.folder, error)
            self._writes = False


def write_profile(
    folder: Path, model: ModelProfile, compressor: CompressorProfile, system: SystemProfile | None
) -> None:
    """Write the files of a profile, that of the model last. Raises PlanError where one cannot be written."""
    if system is not None:
        write(folder / SYSTEM, system)
    else:  # that of an earlier job is none of this one
        (folder / SYSTEM).unlink(missing_ok=True)
    write(folder / COMPRESSOR, compressor)
    write(folder / MODEL, model)


def _compressor(settings: ProfileSettings, request: Request) -> Compressor:
    if settings.compressor:
        return compressor_named(settings.compressor)
    return request.compressor if request.compressor.compresses else DEFAULT


_lock = threading.Lock()
_taken = False


def profiled_once(settings: Settings) -> Settings:
    """Return the settings of another optimizer or model: without a profile where an earlier one has it.

    A front end calls it once for each. All ranks make theirs in the same order, so the same one is profiled.
    """
    global _taken
    with _lock:
        if settings.profile is None or _taken:
            return replace(settings, profile=None)
        _taken = True
        return settings


def _release() -> None:
    global _taken
    with _lock:
        _taken = False
