"""What a check has found, as JSON, as a page and as a log: one folder, complete after each item."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.frame.store import write_text
from benchmarks.gpu.page import page

SAID = re.compile(r" *\d+\.\d s  ")
"""How lines begin that the check itself has added to the log."""


class Report:
    """Keeps what was found, and writes it.

    Attributes:
        log: what was said, and what the processes of parts have printed.
        found: `facts` of the machine; `parts` by name, with `seconds`, `items` by name, and a `failure` or why it was
            `left_out`. An item has `seconds`, and a `value`, a `failure` or why it was `left_out`.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], goes_on: bool = False) -> None:
        """`goes_on`: add to the report that lies in the folder, if it is of the same machine."""
        self._folder, self._begun_s = folder, time.monotonic()
        self.log, self._json = folder / "log.txt", folder / "report.json"
        self.found: dict[str, Any] = {"facts": facts, "parts": {}}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (goes_on and self._continues(facts)):
                self._set_aside()
            self.write()
        except OSError as error:
            raise click.ClickException(f"--out {folder} cannot be written: {error}") from error

    def _continues(self, facts: dict[str, Any]) -> bool:
        """Take over the report that lies in the folder, if it is of the same machine."""
        try:
            before = json.loads(self._json.read_text())
            if before["facts"]["card"] != facts["card"]:
                return False
            self.found = {"facts": before["facts"], "parts": dict(before["parts"])}
        except (FileNotFoundError, ValueError, LookupError, TypeError):  # none, or one that a transfer has cut off
            return False
        return True

    def _set_aside(self) -> None:
        """Minutes of a GPU that was lent cannot be had again: what an earlier check has found stays, as FILE.before."""
        for file in (self.log, self._json, *self._folder.glob("gpu-*.md")):
            if file.exists():
                file.replace(file.with_name(f"{file.name}.before"))
        self.log.write_text("")

    @property
    def page(self) -> Path:
        card = str(self.found["facts"]["card"]).lower().replace(" ", "-").replace("/", "-")
        return self._folder / f"gpu-{card}.md"

    def write(self) -> None:
        """Write at once: the machine may be taken away in the middle."""
        write_text(self._json, json.dumps(self.found, indent=1) + "\n")
        write_text(self.page, self._written())

    def _written(self) -> str:
        try:
            return page(self.found)
        except Exception as error:  # the parts are to run all the same, and the JSON has what they find
            return f"This page cannot be written: {type(error).__name__}: {error}. See {self._json.name}.\n"

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self._begun_s:6.1f} s  {text}"
        click.echo(line)
        try:
            with self.log.open("a") as log:
                log.write(line + "\n")
        except OSError as error:  # a full disk: the parts are to run all the same
            click.echo(f"{self.log}: {error}", err=True)

    def last_line(self, start: int) -> str:
        """Return what a process has printed last, from a byte of the log on."""
        printed = self.log.read_bytes()[start:].decode(errors="replace").splitlines()
        lines = [line.strip() for line in printed if line.strip() and not SAID.match(line)]
        return lines[-1] if lines else "silent"

    def begin(self, part: str) -> None:
        self.found["parts"][part] = {"items": {}}
        self.write()
        self.say(part)

    def item(self, part: str, name: str, outcome: dict[str, Any]) -> None:
        self.found["parts"][part]["items"][name] = outcome
        if "failure" in outcome:
            told = f"FAILED: {outcome['failure']}"
        else:
            told = f"left out: {outcome['left_out']}" if "left_out" in outcome else "good"
        seconds = f" ({outcome['seconds']:.1f} s)" if "seconds" in outcome else ""
        self.write()  # before it is said: who reads that an item is good may end the check at once
        self.say(f"  {part}, {name}: {told}{seconds}")

    def end(self, part: str, seconds: float) -> None:
        self.found["parts"][part]["seconds"] = seconds
        self.write()
        self.say(f"{part}: {seconds:.1f} s")

    def leave_out(self, part: str, reason: str) -> None:
        self.found["parts"].setdefault(part, {"items": {}})["left_out"] = reason
        self.write()
        self.say(f"{part}: left out: {reason}")

    def fail(self, part: str, failure: str) -> None:
        self.found["parts"][part]["failure"] = failure
        self.write()
        self.say(f"{part}: FAILED: {failure}")

    @property
    def has_run(self) -> bool:
        """Whether anything was looked at."""
        return any(
            "value" in item or "failure" in item
            for part in self.found["parts"].values()
            for item in part["items"].values()
        )

    @property
    def failures(self) -> list[str]:
        """Return what has failed, in words."""
        found = []
        for name, part in self.found["parts"].items():
            found += [f"{name}: {part['failure']}"] if "failure" in part else []
            found += [f"{name}, {item}: {o['failure']}" for item, o in part["items"].items() if "failure" in o]
        return found
