"""What collectives take in this job, and what they took in earlier ones of the same shape."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from hvd_compress import __version__
from hvd_compress.cost.calibrate import SIZES, Calibrator, nearest
from hvd_compress.cost.curves import Curves, Key
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError

KEPT = 100
"""Files of curves: each job shape has one, and pods and labs have new names each time."""
STATES = 16
"""Measurements of one job shape: of the collectives of several requests, of an idle machine and of a busy one."""
EACH_S = 0.1
"""The budget for a collective, of at least five."""
MOST_BYTES = 1 << 30
"""Of all ranks together in a measurement: what an all-gather needs on each."""
ALIKE = 2.0
"""Curves whose times differ by at most this factor are of one network: a busy machine makes as much of a difference."""

UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, ConfigError,
)  # fmt: skip
"""What a file that is broken, or is not ours, raises."""


@dataclass(frozen=True)
class JobShape:
    """What a calibration is valid for.

    Attributes:
        engine: its name.
        world_size: number of ranks.
        hosts: the host's name of each rank, in rank order.
        library: name and version of what moves the bytes, on rank 0.
        version: of this package.
    """

    engine: str
    world_size: int
    hosts: tuple[str, ...]
    library: str
    version: str = __version__

    def file_name(self) -> str:
        """Return a name by engine, number of ranks and hosts; what else differs is compared when the file is read."""
        digest = hashlib.sha256("\n".join(self.hosts).encode()).hexdigest()[:8]
        return f"{self.engine.lower()}-{self.world_size}-{digest}.json"


def default_folder() -> Path:
    """Return curves/ in HVD_COMPRESS_CACHE, by default in hvd_compress/ in XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("HVD_COMPRESS_CACHE") or Path(base) / "hvd_compress") / "curves"


def job_shape(engine: Engine) -> JobShape:
    """Ask all ranks where they are. Collective; the same on all ranks."""
    answers = engine.allgather_json({"host": socket.gethostname(), "library": engine.library})
    hosts = tuple(str(answer["host"]) for answer in answers)
    return JobShape(engine.name, engine.world_size, hosts, str(answers[0]["library"]))


def save(curves: Curves, shape: JobShape, folder: Path | None = None) -> None:
    """Keep the curves with the newest others of this shape, on one rank (0).

    What reads meanwhile sees the old file or the new one, never half of one. A folder that cannot be written to is a
    warning: the next job measures again. The newest KEPT files are kept, and in each the newest STATES measurements.
    """
    path = (folder or default_folder()) / shape.file_name()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be read was told when it was loaded, and is replaced
        states = [*_read(path, shape), curves][-STATES:]
    rows = [{"curves": state.to_json()} for state in states]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as failing, tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            failing.callback(os.unlink, file.name)  # on a full disk
            json.dump({"shape": dataclasses.asdict(shape), "states": rows}, file, indent=1)
            file.flush()
            os.replace(file.name, path)
            failing.pop_all()
    except OSError as error:
        warnings.warn(f"calibrated curves were not saved: {error}", stacklevel=2)
        return
    _prune(path.parent)


def _prune(folder: Path) -> None:
    """Keep the newest KEPT files. Another job may do the same just now."""
    ages: dict[Path, float] = {}
    try:
        for path in folder.glob("*.json"):
            with suppress(FileNotFoundError):
                ages[path] = path.stat().st_mtime
        for path in sorted(ages, key=ages.__getitem__, reverse=True)[KEPT:]:
            path.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"old calibrated curves were not removed: {error}", stacklevel=3)


def load(engine: Engine, shape: JobShape, keys: Sequence[Key], folder: Path | None = None) -> list[Curves]:
    """Return saved curves of these collectives, of each measurement that has all of them, the newest last.

    Collective: rank 0 reads, and warns of a file that is broken or of another job shape; all use what it found.
    """
    found = _read((folder or default_folder()) / shape.file_name(), shape) if engine.rank == 0 else []
    whole = [curves.by_key for curves in found if all(key in curves.by_key for key in keys)]
    of_keys = [Curves(shape.world_size, {key: by_key[key] for key in keys}) for by_key in whole]
    rows = engine.allgather_json([curves.to_json() for curves in of_keys])[0]
    return [Curves.from_json(shape.world_size, row) for row in rows]


def obtain(engine: Engine, keys: Sequence[Key], budget_s: float, folder: Path | None = None) -> tuple[Curves, bool]:
    """Return curves of these collectives, and whether an earlier job measured them. Collective, the same on all ranks.

    This job measures in any case. Where an earlier one of the same shape has found about the same, its curves are
    returned, so that noise does not make two jobs on one network decide differently; else rank 0 keeps what was found.

    Args:
        keys: verbs and algorithms, the same on all ranks.
        budget_s: how long to measure, at most.
    """
    budget_s, shape = min(budget_s, EACH_S * max(5, len(keys))), job_shape(engine)
    sizes = [size for size in SIZES if size * engine.world_size <= MOST_BYTES]
    fresh = Calibrator(engine, keys, budget_s, sizes or SIZES[:1]).run()
    known = nearest(fresh, load(engine, shape, keys, folder), ALIKE)
    if known is not None:
        return known, True
    if engine.rank == 0:
        save(fresh, shape, folder)
    return fresh, False


def _read(path: Path, shape: JobShape) -> list[Curves]:
    """Return the measurements in a file; none where it is of no use."""
    try:
        content = json.loads(path.read_text())
        saved, wanted = content["shape"], json.loads(json.dumps(dataclasses.asdict(shape)))
        differing = [name for name in wanted if saved.get(name) != wanted[name]]
        if differing:
            words = ", ".join(f"{name} {saved.get(name)!r} instead of {wanted[name]!r}" for name in differing)
            warnings.warn(f"{path} is ignored: it is of another job shape ({words})", stacklevel=4)
            return []
        return [Curves.from_json(shape.world_size, state["curves"]) for state in content["states"]]
    except FileNotFoundError:
        return []
    except UNREADABLE as error:
        warnings.warn(f"{path} is ignored: it cannot be read ({type(error).__name__}: {error})", stacklevel=4)
        return []
