"""Files and pictures that a command is to write: what keeps it from that is said before its work, and not after."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hvd_compress.errors import ConfigError
from hvd_compress.extras import PACKAGES, needed, require
from hvd_compress.settings import exists

PICTURES = f"Pictures need matplotlib: {PACKAGES['matplotlib'].remedy}."
"""For the help of an option that names them."""
FORMATS = (".png", ".svg", ".pdf")
"""By the suffix of a picture."""


def require_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path]) -> None:
    """Check the files that a command writes, by their options.

    Raises ConfigError where one cannot be written, or is an input of the command or another of its outputs.
    """
    read = {_place(path) for path in inputs}
    options: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        place = _place(path)
        if place in read:
            raise ConfigError(f"{option} {path} is an input of this command, and would be replaced: name another file")
        if place in options:
            raise ConfigError(f"{options[place]} and {option} are the same file, {path}: name two")
        options[place] = option
        _require_writable(option, path)


def _place(path: Path) -> str:
    """Return where a path leads; Path.resolve() raises RuntimeError for a link to itself."""
    return os.path.realpath(path)


def _require_writable(option: str, path: Path) -> None:
    """Raise ConfigError where a file cannot be written. Nothing is left behind."""
    try:
        if exists(path) and not path.is_file():
            raise ConfigError(f"cannot write {option} {path}: it is no regular file, and would be replaced")
        tempfile.TemporaryFile(dir=path.parent).close()
        if exists(path):
            path.open("ab").close()
    except FileNotFoundError:
        raise ConfigError(f"cannot write {option} {path}: there is no folder {path.parent}: make it first") from None
    except OSError as error:
        raise ConfigError(f"cannot write {option} {path}: {error.strerror}") from None


def require_picture(path: Path, what: str) -> None:
    """Check that a picture can be made, before there is anything to draw; `what` needs it, in words.

    Raises ConfigError for another suffix than those of FORMATS, MissingPackageError where matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"cannot draw {path}: the name of a picture ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        )
    require("matplotlib", what)


def new_figure(what: str, **settings: Any) -> Any:
    """Return an empty figure of matplotlib, without a display. Raises MissingPackageError where that is missing."""
    with needed("matplotlib", what):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(layout="constrained", **settings)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path, dpi: int = 110) -> None:
    """Write a picture; the suffix of `path` says which kind. Raises ConfigError where it cannot be written."""
    try:
        figure.savefig(path, dpi=dpi)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from None
