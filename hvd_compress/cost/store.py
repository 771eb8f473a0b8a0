"""Keeping calibrated curves from one job to the next of the same shape."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import socket
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from hvd_compress import __version__
from hvd_compress.cost.calibrate import BUDGET_S, calibrate, matching, measurable
from hvd_compress.cost.curves import Curves, Key
from hvd_compress.engines.base import Engine
from hvd_compress.errors import ConfigError

KEPT = 100
"""Files of curves: each job shape has one, and pods and labs have new names each time."""
STATES = 4
"""Curves of one job shape: those of an idle machine, of a busy one, of a network that others use, too."""

UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, ConfigError,
)  # fmt: skip
"""What a file that is broken, or is not ours, raises."""

log = logging.getLogger("hvd_compress")


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


def default_folder(name: str = "curves") -> Path:
    """Return a folder in HVD_COMPRESS_CACHE, by default in hvd_compress/ in XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("HVD_COMPRESS_CACHE") or Path(base) / "hvd_compress") / name


def job_shape(engine: Engine) -> JobShape:
    """Ask all ranks where they are. Collective; the same on all ranks."""
    answers = engine.allgather_json({"host": socket.gethostname(), "library": engine.library})
    hosts = tuple(str(answer["host"]) for answer in answers)
    return JobShape(engine.name, engine.world_size, hosts, str(answers[0]["library"]))


def save(curves: Curves, shape: JobShape, folder: Path | None = None, budget_s: float = BUDGET_S) -> None:
    """Keep the curves beside the newest others of this shape, on one rank (0).

    What reads meanwhile sees the old file or the new one, never half of one. A folder that cannot be written to is a
    warning: the next job measures again. The newest KEPT files are kept, and in each STATES curves: of more, those that
    were measured for longest.

    Args:
        budget_s: the seconds in which they were measured.
    """
    path = (folder or default_folder()) / shape.file_name()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what cannot be read was told when it was loaded, and is replaced
        earlier = _read(path, shape, ())
    states = [*_most_thorough(earlier, STATES - 1), (budget_s, curves)]
    rows = [{"budget_s": seconds, "curves": state.to_json()} for seconds, state in states]
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


def _most_thorough(states: list[tuple[float, Curves]], count: int) -> list[tuple[float, Curves]]:
    """Return those that were measured for longest, of equals the newest, in their order."""
    order = sorted(range(len(states)), key=lambda number: (states[number][0], number))
    return [states[number] for number in sorted(order[max(0, len(order) - count) :])]


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


def load(
    engine: Engine,
    shape: JobShape,
    folder: Path | None = None,
    budget_s: float = BUDGET_S,
    needed: Sequence[Key] | None = None,
) -> tuple[Curves, ...]:
    """Return the saved curves of this shape, the newest last. Collective: rank 0 reads, all ranks use what it found.

    Those that were measured in less than `budget_s` seconds are left alone: what is asked for is better.

    Rank 0 warns of a file that is broken, of another job shape, or without a collective that is needed: of all that
    this engine can force, unless `needed` names others.
    """
    path = (folder or default_folder()) / shape.file_name()
    found = _read(path, shape, measurable(engine) if needed is None else needed) if engine.rank == 0 else []
    rows = engine.allgather_json([curves.to_json() for seconds, curves in found if seconds >= budget_s])[0]
    return tuple(Curves.from_json(shape.world_size, row) for row in rows)


def obtain(engine: Engine, budget_s: float = BUDGET_S, folder: Path | None = None) -> tuple[Curves, bool]:
    """Return the curves of this job, and whether they were saved by an earlier one. Collective, the same on all ranks.

    Saved curves are used if a few measurements say that some of them describe the network as it is; if not, or without
    any, this calibrates within `budget_s` seconds, and rank 0 saves the result beside them. So each state of a network
    is measured once; the second one of a job shape is told in the log.
    """
    shape = job_shape(engine)
    saved = load(engine, shape, folder, budget_s)
    found = matching(engine, saved) if saved else None
    if found is not None:
        return found, True
    start = perf_counter()
    curves = calibrate(engine, budget_s)
    if engine.rank == 0:
        if len(saved) == 1:
            log.warning(
                "hvd_compress: the network differs from what was saved for such jobs; it was measured again, in %.1f "
                "s. Both measurements are kept, and nothing is to be done",
                perf_counter() - start,
            )
        save(curves, shape, folder, budget_s)
    return curves, False


def _read(path: Path, shape: JobShape, needed: Sequence[Key]) -> list[tuple[float, Curves]]:
    """Return the curves in a file, each with the seconds in which it was measured; none where it is of no use."""
    try:
        content = json.loads(path.read_text())
        saved, wanted = content["shape"], json.loads(json.dumps(dataclasses.asdict(shape)))
        differing = [name for name in wanted if saved.get(name) != wanted[name]]
        if differing:
            words = ", ".join(f"{name} {saved.get(name)!r} instead of {wanted[name]!r}" for name in differing)
            warnings.warn(f"{path} is ignored: it is of another job shape ({words})", stacklevel=4)
            return []
        states = content.get("states", [content])  # the latter as the file was when it held one
        rows = [(float(row["budget_s"]), Curves.from_json(shape.world_size, row["curves"])) for row in states]
    except FileNotFoundError:
        return []
    except UNREADABLE as error:
        warnings.warn(f"{path} is ignored: it cannot be read ({type(error).__name__}: {error})", stacklevel=4)
        return []
    whole = [(seconds, curves) for seconds, curves in rows if all(key in curves.by_key for key in needed)]
    if rows and not whole:
        lacking = sorted({" ".join(key) for _, curves in rows for key in needed if key not in curves.by_key})
        warnings.warn(f"{path} is ignored: it lacks {', '.join(lacking)}", stacklevel=4)
    return whole
