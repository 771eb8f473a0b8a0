"""Archives of checkpoints: all files that programs wrote, as they are, in one small file."""

from __future__ import annotations

import tarfile
from pathlib import Path

from hvd_compress.guests import GUESTS

FOLDER = Path(__file__).parents[2] / "tests/checkpoints/data"
ENDING = ".tar.xz"
NAMES = sorted(path.name.removesuffix(ENDING) for path in FOLDER.glob(f"*{ENDING}"))


def path_of(name: str) -> Path:
    return FOLDER / f"{name}{ENDING}"


def pack(folder: Path, name: str) -> None:
    """Write an archive of all files in a folder; the same bytes for the same files."""
    FOLDER.mkdir(exist_ok=True)
    with tarfile.open(path_of(name), "x:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder), recursive=False, filter=_plain)


def unpack(name: str, folder: Path) -> None:
    with tarfile.open(path_of(name)) as archive:
        if hasattr(tarfile, "data_filter"):  # not in the first releases of Python 3.10 and 3.11
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)


def entries(name: str, kind: str) -> list[str]:
    """Return the names of what a folder of an archive holds, but of compressions of guests that are not here."""
    with tarfile.open(path_of(name)) as archive:
        parts = [Path(each).parts for each in archive.getnames()]
    gone = tuple(each for guest in GUESTS if not guest.is_here for each in guest.compressions)
    return sorted({each[1] for each in parts if len(each) > 1 and each[0] == kind and not each[1].startswith(gone)})


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member
