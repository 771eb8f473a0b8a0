"""How a process ends: what is left is ended first, and what cannot be ended ends with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.level1

SETUP = """
import atexit, os, sys
atexit.register(print, "cleaned up", flush=True)
from hvd_compress.engines.leave import at_end, fail_at_exit

class Owner: ...
"""


def ended(program: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + program], capture_output=True, text=True, check=False, timeout=600
    )
    return done.returncode, done.stdout, done.stderr


def test_a_failure_ends_the_process_past_every_clean_up() -> None:
    code, said, _ = ended("""
fail_at_exit(lambda: print("aborted", flush=True))
print("trained", flush=True)
""")
    assert (code, said) == (1, "trained\naborted\n")


def test_a_failure_that_is_found_at_the_end_does_so_too() -> None:
    """As where buckets have left that nobody has waited for: another handler that is registered then is not called."""
    code, said, _ = ended("""
import weakref
first = Owner()
weakref.finalize(first, print, "of another package")  # whose handler is there before ours, and runs behind it
owner = Owner()
at_end(owner, lambda: fail_at_exit(lambda: print("aborted", flush=True)))
""")
    assert (code, said) == (1, "aborted\n")


@pytest.mark.parametrize("ends", ["", "raise RuntimeError", "sys.exit(3)"])
def test_what_is_left_is_ended_once_the_latest_first(ends: str) -> None:
    """Before the handlers that were registered earlier, of MPI and Horovod among them."""
    code, said, told = ended(f"""
dropped, first, second = Owner(), Owner(), Owner()
for name in ("dropped", "first", "second"):
    at_end(globals()[name], print, name)
called = Owner()
at_end(called, print, "called")()
del dropped
print("--")
{ends}
""")
    assert said == "called\ndropped\n--\nsecond\nfirst\ncleaned up\n"
    assert code == {"": 0, "raise RuntimeError": 1, "sys.exit(3)": 3}[ends]
    assert ("RuntimeError" in told) == (code == 1)


def test_an_error_keeps_nothing_else_from_ending() -> None:
    _, said, told = ended("""
first, second = Owner(), Owner()
at_end(first, print, "first")
at_end(second, lambda: 1 / 0)
""")
    assert said == "first\ncleaned up\n"
    assert "ZeroDivisionError" in told


@pytest.mark.parametrize("what", ['at_end(owner, print, "ended")', "fail_at_exit(aborts)"])
def test_a_child_process_ends_nothing_of_its_parent(what: str) -> None:
    _, said, _ = ended(f"""
owner, aborts = Owner(), lambda: print("aborted", flush=True)
{what}
sys.stdout.flush()
if os.fork() == 0:
    sys.exit()
os.wait()
print("parent")
""")
    expected = {"at_end": "cleaned up\nparent\nended\ncleaned up\n", "fail_a": "cleaned up\nparent\naborted\n"}
    assert said == expected[what[:6]]
