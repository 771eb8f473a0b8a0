"""Probes run in processes of their own: whatever happens there, the doctor gets a result."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hvd_compress.cli import probes

LIMIT_S = 600.0
"""Only what hangs takes so long."""


def _run_instead(monkeypatch: pytest.MonkeyPatch, program: str, timeout_s: float = LIMIT_S) -> probes.Result:
    original = subprocess.Popen

    def popen(_: object, **options: object) -> subprocess.Popen[str]:
        return original([sys.executable, "-c", program], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(probes.subprocess, "Popen", popen)
    return probes.run("torch", timeout_s)


def test_values_are_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, """print("a library says hello"); print('{"version": "1"}')""")
    assert result == probes.Result({"version": "1"})


def test_an_exception_becomes_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, "raise ImportError('libmpi.so.40: cannot open')")
    assert result == probes.Result(error="ImportError: libmpi.so.40: cannot open")


def test_a_crash_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert result == probes.Result(error="crashed with SIGSEGV")


def test_a_hang_ends_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    # The child holds the pipes open: only killing the whole group lets the probe end.
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    result = _run_instead(monkeypatch, program, timeout_s=0.5)
    assert "no answer" in result.error


def test_native_probe_computes() -> None:
    assert probes.run("native", LIMIT_S).values["file"].endswith(".so")
