"""A rank as Accelerate's launcher starts it; every warning is an error there."""

from __future__ import annotations

import io
import os
import runpy
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"

COMPILER = "torch._dynamo.backends.common"
"""What torch.compile imports for its backends."""


@contextmanager
def launched(rank: int, ranks: int) -> Iterator[None]:
    """Around what a rank does, whose process group is there already."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(each) for name, each in place.items()})
    with strictly():
        yield


@contextmanager
def strictly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def of_example(script: str, *arguments: str) -> str:
    """Return what an example prints on this rank."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = [script, *arguments]
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()
