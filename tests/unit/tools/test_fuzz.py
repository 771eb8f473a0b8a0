"""`make fuzz` looks at every target that there is, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import malformed

TOOLS = Path(__file__).parents[3] / "tools"


def test_it_names_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import fuzz

    assert fuzz.TARGETS.keys() == malformed.TARGETS.keys()
    command = list(map(str, fuzz._command("bytes")))
    assert Path(command[1]).exists()
    assert command[2] == "bytes"
    assert "-max_total_time=100" in command
