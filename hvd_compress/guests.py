"""The guests: what stands on the core, and can be taken away. One table, of words alone; the core imports no guest.

A guest is a folder. What it brings is imported when it is first asked for: a command of `hvd-compress` is the `command`
of the module of its name in the guest's folder `cli`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Guest:
    """What one guest brings.

    Attributes:
        folder: below this package, such as "papers/covap".
        commands: of `hvd-compress`, with what each does; "plan make" is the command `make` of `plan`.
    """

    folder: str
    commands: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_here(self) -> bool:
        return (Path(__file__).parent / self.folder / "__init__.py").is_file()

    def imported(self, module: str) -> Any:
        """Return a module of this guest, by its name below the folder."""
        return importlib.import_module(f"{__package__}.{self.folder.replace('/', '.')}.{module}")


GUESTS = (
    Guest("attention", {"chai": "Cluster the heads of a model's attention, and measure it."}),
    Guest("embedding"),
    Guest("netlab", {"netlab": "Emulate a network of hosts on this machine, and run jobs on it."}),
)


def commands(group: str = "") -> dict[str, str]:
    """Return the commands of guests that are here, with what each does; those of a group, by default of none."""
    found = {words: does for guest in GUESTS if guest.is_here for words, does in guest.commands.items()}
    return {words.split()[-1]: does for words, does in found.items() if " ".join(words.split()[:-1]) == group}


def command(words: str) -> Any:
    """Return the command of a guest; None where no guest that is here has it."""
    name = words.split()[-1]
    here = [guest for guest in GUESTS if guest.is_here and words in guest.commands]
    return here[0].imported(f"cli.{name}").command if here else None


def missing(words: str) -> str:
    """Return the folder of the guest that would bring a command, where it is not here; else nothing."""
    return next((guest.folder for guest in GUESTS if words in guest.commands and not guest.is_here), "")
