"""What is read from the environment, in one place, once for each optimizer."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import warnings
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from hvd_compress import guests
from hvd_compress.checks import check_number, check_whole
from hvd_compress.errors import ConfigError, MissingPackageError, did_you_mean
from hvd_compress.extras import needed
from hvd_compress.units import parse_latency

DEFAULT_FUSION_THRESHOLD_BYTES = 64 * 1024 * 1024
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_CALIBRATION_S = 3.0
DEFAULT_TIMELINE_EVERY = 10
DEFAULT_CHECK_EVERY = 100
DEFAULT_CCR_STEPS = 3
FLAGS = {"0": ("no", "off", "false"), "1": ("yes", "on", "true")}
"""What may be written in the place of 0 and 1, for messages."""
MOST_IN_FLIGHT = 8
"""Each has a thread, and connections of its own."""
DEFAULT_HOROVOD_NICENESS = 10
"""A tenth of a core, where somebody else wants it."""
MOST_STEPS = 1_000_000_000
"""Of what is counted in steps: years."""

PREFIX = "HVD_COMPRESS_"
VARIABLES = (
    "ADAPT",
    "CACHE",
    "CALIBRATION_S",
    "CCR",
    "CCR_SKIP",
    "CCR_STEPS",
    "CHECK_EVERY",
    "CUDA",
    "HOROVOD",
    "HOROVOD_NICENESS",
    "IN_FLIGHT",
    "LOG",
    "NETLAB",
    "NUM_THREADS",
    "PROFILE",
    "PROFILE_COMPRESSOR",
    "PROFILE_SKIP",
    "PROFILE_STEPS",
    "RUNTIME",
    "TENSORBOARD",
    "TIMELINE",
    "TIMELINE_EVERY",
    "TIMEOUT_S",
)
"""All that a user may set, here and elsewhere."""
INTERNAL = ("COORDINATOR", "NETLAB_HOSTS", "PROFILE_RUN", "TEST_EXAMPLES", "WERROR")
"""What is read beside them, within a lab, in a job that `hvd-compress profile` has started, and while building and
testing."""


class Recording(ABC):
    """What the environment asks a guest to record of a training (`guests.Guest.recordings`).

    Attributes:
        variable: by which it was asked for.
        adapts: whether something may be chosen by measurement meanwhile.
    """

    variable: ClassVar[str]
    adapts: ClassVar[bool] = True

    @property
    @abstractmethod
    def written(self) -> tuple[Path, Path]:
        """The file or folder that rank 0 writes, and the folder that it needs for that."""

    @abstractmethod
    def recorder(self, handle: Any, request: Any, settings: Settings) -> Any:
        """Return the service that records it, of a handle. Raises UnsupportedError where nothing can be recorded."""


@dataclass(frozen=True)
class Settings:
    """The environment's settings.

    Attributes:
        fusion_threshold_bytes: HOROVOD_FUSION_THRESHOLD, the size of a bucket; 0 gives every parameter its own.
        timeout_s: HVD_COMPRESS_TIMEOUT_S, how long a step waits for other ranks before it fails; where it is not set, a
            longer limit of the program's own process group.
        adapt: HVD_COMPRESS_ADAPT, whether what a request leaves open is chosen by measurement, while training runs; if
            not, by a formula, once, so that two runs send the same.
        calibration_s: HVD_COMPRESS_CALIBRATION_S, how long it may measure the network before the first choice, about.
        log: HVD_COMPRESS_LOG, the file for how buckets travel, why, and what exchanges take, as lines of JSON; written
            by rank 0.
        timeline: HVD_COMPRESS_TIMELINE, the file for a trace in the dialect of Horovod's timeline; written by rank 0,
            or where "{rank}" is part of the name by each rank.
        timeline_every: HVD_COMPRESS_TIMELINE_EVERY: one step in so many is traced.
        tensorboard: HVD_COMPRESS_TENSORBOARD, the folder for the same as scalars; written by rank 0.
        check_every: HVD_COMPRESS_CHECK_EVERY: one step in so many is checked for equal replicas; 0 checks none.
        recordings: what guests are asked to record of the training.
        in_flight: HVD_COMPRESS_IN_FLIGHT, how many buckets may be exchanged at the same time; None: as the engine says.
        horovod_niceness: HVD_COMPRESS_HOROVOD_NICENESS, by which Horovod's threads give way where gradients travel
            among hosts without them; 0 leaves them alone.
        cuts: whether how many buckets there are may be found while training, as HOROVOD_FUSION_THRESHOLD is not set.
    """

    fusion_threshold_bytes: int = DEFAULT_FUSION_THRESHOLD_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S
    adapt: bool = False
    calibration_s: float = DEFAULT_CALIBRATION_S
    log: Path | None = None
    timeline: Path | None = None
    timeline_every: int = DEFAULT_TIMELINE_EVERY
    tensorboard: Path | None = None
    check_every: int = DEFAULT_CHECK_EVERY
    recordings: tuple[Recording, ...] = ()
    in_flight: int | None = None
    horovod_niceness: int = DEFAULT_HOROVOD_NICENESS
    cuts: bool = False

    def waiting(self, own_s: float) -> Settings:
        """Return the same with the program's own limit of `own_s` seconds, where it is longer than the default."""
        is_longer = self.timeout_s == DEFAULT_TIMEOUT_S and own_s > self.timeout_s
        return replace(self, timeout_s=min(own_s, threading.TIMEOUT_MAX)) if is_longer else self

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the variables.

        Raises:
            ConfigError: a variable is not a number of the right kind.

        Warns of a variable that begins as ours do and is none of them.
        """
        for name in sorted(os.environ):
            if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in (*VARIABLES, *INTERNAL):
                warnings.warn(f"{name} is no variable of hvd_compress and is ignored{_meant(name)}", stacklevel=3)
        adapt = _text("HVD_COMPRESS_ADAPT") or "1"
        if adapt not in ("0", "1"):
            raise ConfigError(f"HVD_COMPRESS_ADAPT = {adapt!r} is neither 0 nor 1{_flag_meant(adapt)}")
        in_flight, hint = "HVD_COMPRESS_IN_FLIGHT", "unset it for what the engine does best"
        return cls(
            fusion_threshold_bytes=whole("HOROVOD_FUSION_THRESHOLD", DEFAULT_FUSION_THRESHOLD_BYTES, 0, None, "bytes"),
            cuts=not _text("HOROVOD_FUSION_THRESHOLD"),
            timeout_s=min(_seconds("HVD_COMPRESS_TIMEOUT_S", DEFAULT_TIMEOUT_S, above=True), threading.TIMEOUT_MAX),
            adapt=adapt == "1",
            calibration_s=_seconds("HVD_COMPRESS_CALIBRATION_S", DEFAULT_CALIBRATION_S),
            log=_path("HVD_COMPRESS_LOG"),
            timeline=_path("HVD_COMPRESS_TIMELINE"),
            timeline_every=whole("HVD_COMPRESS_TIMELINE_EVERY", DEFAULT_TIMELINE_EVERY, 1),
            tensorboard=_path("HVD_COMPRESS_TENSORBOARD"),
            check_every=whole("HVD_COMPRESS_CHECK_EVERY", DEFAULT_CHECK_EVERY, 0),
            recordings=guests.recordings(),
            in_flight=whole(in_flight, 1, 1, MOST_IN_FLIGHT, "buckets", hint) if _text(in_flight) else None,
            horovod_niceness=whole("HVD_COMPRESS_HOROVOD_NICENESS", DEFAULT_HOROVOD_NICENESS, 0, 19, ""),
        )

    def timeline_of(self, rank: int) -> Path | None:
        """Return the file of a rank's timeline; None where it writes none."""
        if self.timeline is None or (rank > 0 and "{rank}" not in str(self.timeline)):
            return None
        return Path(str(self.timeline).replace("{rank}", str(rank)))

    def obstacle(self, rank: int) -> str:
        """Return in words what a rank is to write and cannot, or nothing. Nothing is left behind but folders."""
        tells = rank == 0
        files = {"TIMELINE": self.timeline_of(rank), "LOG": self.log if tells else None}
        places = [(name, path, path.parent) for name, path in files.items() if path is not None]
        if tells and self.tensorboard is not None:
            places.append(("TENSORBOARD", self.tensorboard, self.tensorboard))
        if tells:
            places += [(each.variable.removeprefix(PREFIX), *each.written) for each in self.recordings]
        trace = files["TIMELINE"]
        if trace is not None and os.path.exists(trace) and not trace.is_file():
            return f"cannot write {PREFIX}TIMELINE = {trace}: it is no regular file, and would be replaced"
        words = [_refusal(*place) for place in places]
        if tells and self.tensorboard is not None:
            words.append(_no_tensorboard())
        return "; ".join(filter(None, words))


def exists(path: Path) -> bool:
    """As Path.exists(), which since Python 3.14 raises nothing, as where a name is too long."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _refusal(name: str, path: Path, folder: Path) -> str:
    """Return in words why what is named cannot be written, or nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path != folder and exists(path):
            path.open("a").close()
        else:
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        no_folder = isinstance(error, (FileExistsError, NotADirectoryError))
        why = "a part of the path is no folder" if no_folder else error.strerror
        return f"cannot write {PREFIX}{name} = {path} ({why}): name what it can write, or unset it"
    return ""


def _no_tensorboard() -> str:
    try:
        with needed("tensorboard", "HVD_COMPRESS_TENSORBOARD"):
            import_module("torch.utils.tensorboard")
    except MissingPackageError as error:
        return f"has no tensorboard that works: {error}"
    return ""


def _meant(name: str) -> str:
    close = did_you_mean(name.removeprefix(PREFIX), VARIABLES).replace("mean ", f"mean {PREFIX}")
    return close or f"; known are {PREFIX}{{{', '.join(VARIABLES)}}}"


def _flag_meant(text: str) -> str:
    return next((f"; did you mean {flag}?" for flag, words in FLAGS.items() if text.lower() in words), "")


def _number_meant(name: str, text: str) -> str:
    """Return what an error of a time says that has a unit, or of a number with commas or a unit."""
    if name.endswith("_S"):
        with suppress(ConfigError):
            return f"; it is in seconds: did you mean {parse_latency(text):.10g}?"
    digits = re.fullmatch(r"\d{1,3}([,' ]\d{3})+", text)
    return f"; did you mean {re.sub(r'[^0-9]', '', text)}?" if digits else ""


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _path(name: str) -> Path | None:
    return Path(_text(name)) if _text(name) else None


def _seconds(name: str, default: float, *, above: bool = False) -> float:
    return check_number(name, _number(name, default), 0, above=above, hint="a time in seconds")


def whole(name: str, default: int, low: int, high: int | None = MOST_STEPS, of: str = "steps", hint: str = "") -> int:
    """Return the whole number that a variable has. Raises ConfigError for what is none."""
    value = float(_number(name, default))
    number: Any = int(value) if value.is_integer() and abs(value) < 1e30 else value
    return check_whole(name, number, low, high, of=of, hint=hint)


def _number(name: str, default: float) -> float:
    text = _text(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ConfigError(f"{name} = {text!r} is not a number, such as {default:.10g}{_number_meant(name, text)}")
    return value
