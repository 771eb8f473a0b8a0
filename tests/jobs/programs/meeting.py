"""Ranks whose patience is short set out together: what they import takes longer on a busy machine than they wait."""

from __future__ import annotations

import os
import time
from pathlib import Path


def meet(before: str = "ready", without: int = 0) -> None:
    """Wait until all ranks but `without` of them have come here, by files in the job's folder.

    before: another word for each place.
    """
    rank, size = (os.environ.get(own) or os.environ[f"OMPI_COMM_WORLD_{theirs}"] for own, theirs in NAMES)
    folder = Path(os.environ["JOB_FOLDER"])
    (folder / f"{rank}.{before}").touch()
    while len(list(folder.glob(f"*.{before}"))) < int(size) - without:
        time.sleep(0.02)


NAMES = (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"))
"""Of the variables of torchrun and of mpirun."""
