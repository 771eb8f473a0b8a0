"""Programs of examples/, each run by a rank of a job as its launcher runs it."""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed_by(script: str, *arguments: str) -> str:
    """Run an example in this process, and return what it prints."""
    printed, before = io.StringIO(), (sys.argv, sys.path)
    sys.argv, sys.path = [script, *arguments], [str(EXAMPLES), *sys.path]
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    finally:
        sys.argv, sys.path = before
    return printed.getvalue()
