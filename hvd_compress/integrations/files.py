"""What compression remembers, in the folders of others' checkpoints: a file a rank, as libraries keep random states.

Nothing is communicated, so a program may save on one rank alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress import ddp
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.launched import has_met
from hvd_compress.warned import warn_caller


def save(model: Any, folder: str | Path, prefix: str = "hvd_compress") -> None:
    """Write what this rank remembers of a compressed model to a file of a folder, which exists."""
    file = Path(folder, f"{prefix}_{_rank()}.pt")
    torch.save(ddp.state_dict(model), file.with_suffix(".draft"))
    file.with_suffix(".draft").replace(file)  # a job that is killed leaves no part of a file


def load(model: Any, folder: str | Path, prefix: str = "hvd_compress") -> None:
    """Give this rank its own, to the bit, or in a job of another size the mean over ranks, if all are there.

    Raises ConfigError for a file that cannot be read, or is none of this model.

    Warns where residuals begin with zeros, as files are missing.
    """
    files = {int(_number(path)): path for path in Path(folder).glob(f"{prefix}_*.pt") if _number(path)}
    if not files:
        warn_caller(
            f"there is no {prefix}_*.pt in {folder}, as nothing was compressed when it was saved: residuals begin with "
            "zeros"
        )
        return
    size = dist.get_world_size() if has_met() else 1
    first = _read(files[min(files)], mmap=True)
    own = f"rank {_rank()} of {size}"
    if _rank() in files and own in (mine := _read(files[_rank()]))["ranks"] and mine["step"] == first["step"]:
        ddp.load_state_dict(model, mine)
        return
    of_all = [_read(file, mmap=True) for file in files.values()]
    of_all = [each for each in of_all if each["step"] == first["step"]]  # others are older
    ranks = {name: each for state in of_all for name, each in state["ranks"].items()}
    sizes = {name.rpartition(" ")[2] for name in first["ranks"]}
    same = {name: each for name, each in ranks.items() if name.rpartition(" ")[2] in sizes}
    ddp.load_state_dict(model, {**first, "ranks": same})


def _number(path: Path) -> str:
    found = re.search(r"_(\d+)\.pt$", path.name)
    return found[1] if found else ""


def _rank() -> int:
    return dist.get_rank() if has_met() else 0


def _read(path: Path, mmap: bool = False) -> dict[str, Any]:
    try:
        found = torch.load(path, weights_only=True, mmap=mmap)
    except Exception as error:  # of many kinds, where a file is cut or of something else
        words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'without words'}"
        raise ConfigError(
            f"{path} cannot be read: {words}; resume from another checkpoint, or remove this file, so that residuals "
            "begin with zeros"
        ) from error
    if not isinstance(found, dict) or not {"step", "ranks"} <= found.keys():
        raise ConfigError(f"{path} is none that compression has written: remove it, or resume from another checkpoint")
    return found
