"""What the environment asks to be recorded of a training: a profile, or its communication-to-computation ratio."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hvd_compress.settings import DEFAULT_CCR_STEPS, Recording, Settings, whole

if TYPE_CHECKING:
    from hvd_compress.frontends.handle import Handle
    from hvd_compress.papers.espresso.profiler.ccr import CcrRecorder
    from hvd_compress.papers.espresso.profiler.job import JobProfile
    from hvd_compress.request.request import Request

DEFAULT_STEPS, DEFAULT_SKIP = 100, 10


@dataclass(frozen=True)
class ProfileSettings(Recording):
    """What a profile of the training is to be. With one nothing is chosen by measurement.

    Attributes:
        folder: HVD_COMPRESS_PROFILE, the folder for its files, written by rank 0.
        steps: HVD_COMPRESS_PROFILE_STEPS, how many are recorded.
        skip: HVD_COMPRESS_PROFILE_SKIP, how many before them are not.
        compressor: HVD_COMPRESS_PROFILE_COMPRESSOR, which to measure, such as topk:ratio=0.01; the request's own where
            it is empty.
        command: HVD_COMPRESS_PROFILE_RUN, the id of the `hvd-compress profile` that has started the job, if one has.
    """

    variable: ClassVar[str] = "HVD_COMPRESS_PROFILE"
    adapts: ClassVar[bool] = False
    folder: Path
    steps: int = DEFAULT_STEPS
    skip: int = DEFAULT_SKIP
    compressor: str = ""
    command: str = ""

    @classmethod
    def from_environment(cls) -> ProfileSettings:
        """Read the variables, of which the first is set. Raises ConfigError for what is no number of steps."""
        steps = whole("HVD_COMPRESS_PROFILE_STEPS", DEFAULT_STEPS, 1)
        skip = whole("HVD_COMPRESS_PROFILE_SKIP", DEFAULT_SKIP, 0)
        compressor = os.environ.get("HVD_COMPRESS_PROFILE_COMPRESSOR", "").strip()
        return cls(Path(os.environ[cls.variable].strip()), steps, skip, compressor, command_run())

    @property
    def written(self) -> tuple[Path, Path]:
        return self.folder, self.folder

    def recorder(self, handle: Handle, request: Request, settings: Settings) -> JobProfile:
        from hvd_compress.papers.espresso.profiler.job import JobProfile

        return JobProfile(handle.parameters, self, request, settings.calibration_s)


@dataclass(frozen=True)
class CcrSettings(Recording):
    """What `hvd-compress profile --ccr` wants of a job.

    Attributes:
        file: HVD_COMPRESS_CCR, where rank 0 writes the communication-to-computation ratio.
        steps: HVD_COMPRESS_CCR_STEPS, how many are profiled.
        skip: HVD_COMPRESS_CCR_SKIP, how many before them are not.
    """

    variable: ClassVar[str] = "HVD_COMPRESS_CCR"
    file: Path
    steps: int = DEFAULT_CCR_STEPS
    skip: int = DEFAULT_SKIP

    @classmethod
    def from_environment(cls) -> CcrSettings:
        """Read the variables, of which the first is set. Raises ConfigError for what is no number of steps."""
        steps = whole("HVD_COMPRESS_CCR_STEPS", DEFAULT_CCR_STEPS, 1)
        return cls(Path(os.environ[cls.variable].strip()), steps, whole("HVD_COMPRESS_CCR_SKIP", DEFAULT_SKIP, 0))

    @property
    def written(self) -> tuple[Path, Path]:
        return self.file, self.file.parent

    def recorder(self, handle: Handle, request: Request, settings: Settings) -> CcrRecorder:
        from hvd_compress.papers.espresso.profiler.ccr import CcrRecorder

        return CcrRecorder(handle.session, self)


def command_run() -> str:
    """Return the id of the `hvd-compress profile` that has started this job; nothing where none has."""
    return os.environ.get("HVD_COMPRESS_PROFILE_RUN", "").strip()
