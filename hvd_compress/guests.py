"""The guests: what stands on the core, and can be taken away. One table, of words alone; the core imports no guest.

A guest is a folder. What it brings is imported when it is first asked for: a command of `hvd-compress` is the `command`
of the module of its name in the guest's folder `cli`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hvd_compress.errors import ConfigError, UnknownCompressionError


@dataclass(frozen=True)
class Guest:
    """What one guest brings.

    Attributes:
        folder: below this package, such as "papers/covap".
        commands: of `hvd-compress`, with what each does; "plan make" is the command `make` of `plan`.
        compressions: functions of `Compression`; each is in "module:class".
        names: of public modules, such as `hvd_compress.ddp`; each is "module:name".
        compressors: by the names that plans use; each is "module:class". The functions of `Compression` of a guest that
            has some name one each.
        collectives: by what the names of their paths have in them, and no other collective's; each is "module:class".
        recordings: what records a training, by the environment variable that asks for it; each is "module:class", of a
            `settings.Recording` with a from_environment().
        earlier: modules of this package that earlier versions had, and states that they pickled name; each with the
            guest's module that has their classes now.
    """

    folder: str
    commands: Mapping[str, str] = field(default_factory=dict)
    collectives: Mapping[str, str] = field(default_factory=dict)
    compressions: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    compressors: Mapping[str, str] = field(default_factory=dict)
    recordings: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_here(self) -> bool:
        return (Path(__file__).parent / self.folder / "__init__.py").is_file()

    def imported(self, module: str) -> Any:
        """Return a module of this guest, by its name below the folder."""
        return importlib.import_module(f"{__package__}.{self.folder.replace('/', '.')}.{module}")

    def named(self, place: str) -> Any:
        """Return what "module:name" means."""
        module, _, name = place.partition(":")
        return getattr(self.imported(module), name)

    @property
    def classes(self) -> Mapping[str, str]:
        """Of compressors, by their names; each is "module:class"."""
        return {place.partition(":")[2]: place for place in self.compressors.values()}

    @property
    def missing(self) -> str:
        """What is said where it would be needed and is not here."""
        return f"comes with hvd_compress/{self.folder}, which is not part of this installation"


FAMILY = {
    "mstopk": "MSTopK",
    "dgc": "DGC",
    "oktopk": "OkTopk",
    "randomk": "RandomK",
    "threshold": "Threshold",
    "sidco": "SIDCo",
    "qsgd": "QSGD",
    "atomo": "ATOMO",
    "signsgd": "SignSGD",
}
"""Compressors of the literature, each in a module of its name, with a function of `Compression`."""

GUESTS = (
    Guest(
        "papers/accordion",
        compressions={"accordion": "compressions:Switching"},
        names={"BatchSizeSchedule": "batch_size:BatchSizeSchedule"},
        earlier={"policies.accordion": "policy"},
    ),
    Guest(
        "papers/covap",
        compressions={"covap": "compressions:Filtering"},
        earlier={"policies.covap_settings": "settings"},
    ),
    Guest(
        "papers/espresso",
        {
            "profile": "Run a training, and record what the planner needs.",
            "probe": "Measure this job's network, under mpirun: alpha, beta, curves.",
            "plan make": "Make a plan from a profile; draw the step that it predicts.",
            "plan compare": "Compare a run's timeline with what its plan predicts.",
            "plan count-options": "Print how many options the planner's tree has.",
            "plan options": "List the options of the planner's tree.",
            "bench planner": "Time the planner, next to the times of Espresso's paper.",
            "timeline": "Draw one step from a trace: what hides behind what.",
        },
        {
            "@": "by_option:ByOption",
            "hierarchical-within": "collectives.hierarchical_within:HierarchicalWithin",
            "hierarchical-both": "collectives.hierarchical_within:HierarchicalWithin",
            "hitopk": "collectives.hitopk:HiTopK",
            "parameter-server": "collectives.parameter_server:ParameterServer",
        },
        names={
            "Profile": "profiler.profile:Profile",
            "measure_compressor": "profiler.compressor:measure_compressor",
            "measure_system": "profiler.system:measure_system",
        },
        recordings={
            "HVD_COMPRESS_CCR": "profiler.settings:CcrSettings",
            "HVD_COMPRESS_PROFILE": "profiler.settings:ProfileSettings",
        },
    ),
    Guest(
        "papers/family",
        collectives={"oktopk": "oktopk_allreduce:OkTopkAllReduce"},
        compressions=dict.fromkeys((*FAMILY, "terngrad"), "compressions:Family"),
        compressors={name: f"{name}:{kind}" for name, kind in FAMILY.items()},
        earlier={f"compressors.{name}": name for name in (*FAMILY, "tails")},
    ),
    Guest(
        "papers/flexible",
        compressions={"flexible": "compressions:TradingOff"},
        earlier={"policies.flexible.settings": "policy"},
    ),
    Guest("papers/utility", {"whatif": "Predict whether compression would pay for a model on a network."}),
    Guest("report", {"report": "Draw how buckets travelled and why, from a log."}),
    Guest(
        "bench",
        {
            "bench kernels": "Time the kernels beside their floor and beside torch.",
            "bench compressors": "Time compressions on one bucket, and what they keep of it.",
        },
    ),
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
    name = words.split()[-1].replace("-", "_")
    here = [guest for guest in GUESTS if guest.is_here and words in guest.commands]
    return here[0].imported(f"cli.{name}").command if here else None


def missing_command(words: str) -> str:
    """Say which guest would bring a command, where it is not here; else nothing."""
    return next((guest.missing for guest in GUESTS if words in guest.commands and not guest.is_here), "")


def collective(name: str) -> Any:
    """Return the class of a guest's collective that a path's name may mean; None where it can mean none.

    Raises:
        ConfigError: the guest that has it is not here.
    """
    for guest in GUESTS:
        for mark, place in guest.collectives.items():
            if mark in name:
                if not guest.is_here:
                    raise ConfigError(f"collective {name!r} {guest.missing}")
                return guest.named(place)
    return None


@cache
def collectives() -> tuple[Any, ...]:
    """Return the classes of the collectives of guests that are here."""
    here = [guest for guest in GUESTS if guest.is_here]
    return tuple(dict.fromkeys(guest.named(place) for guest in here for place in guest.collectives.values()))


def recordings() -> tuple[Any, ...]:
    """Return what the environment asks guests to record of a training.

    Raises:
        ConfigError: the guest that would is not here; or what its from_environment() raises.
    """
    pairs = [(guest, name) for guest in GUESTS for name in guest.recordings if os.environ.get(name, "").strip()]
    for guest, name in pairs:
        if not guest.is_here:
            raise ConfigError(f"{name} {guest.missing}")
    return tuple(guest.named(guest.recordings[name]).from_environment() for guest, name in pairs)


def _bringing(what: str, name: str) -> Guest | None:
    """Return the guest that has a name among what it brings, here or not."""
    return next((guest for guest in GUESTS if name in getattr(guest, what)), None)


def compressions() -> list[str]:
    """Return the functions of `Compression` that guests bring which are here."""
    return [name for guest in GUESTS if guest.is_here for name in guest.compressions]


def choosing() -> list[str]:
    """Return those of them that name no compressor."""
    return [name for guest in GUESTS if guest.is_here and not guest.compressors for name in guest.compressions]


def compressors() -> list[str]:
    """Return the names that plans use of the compressors of guests that are here."""
    return [name for guest in GUESTS if guest.is_here for name in guest.compressors]


def compressor(name: str) -> Any:
    """Return the class of a guest's compressor, by the name that plans use; None where no guest has it.

    Raises:
        ConfigError: the guest that has it is not here.
    """
    guest = _bringing("compressors", name)
    if guest is None:
        return None
    if not guest.is_here:
        raise ConfigError(f"compressor {name!r} {guest.missing}")
    return guest.named(guest.compressors[name])


def compression(name: str) -> Any:
    """Return a function of `Compression` that a guest brings; None where none does.

    Raises:
        UnknownCompressionError: the guest that brings it is not here.
    """
    guest = _bringing("compressions", name)
    if guest is None:
        return None
    if not guest.is_here:
        raise UnknownCompressionError(f"Compression.{name}() {guest.missing}")
    return getattr(guest.named(guest.compressions[name]), name)


def attribute(module: str, name: str, among: str = "names") -> Any:
    """Return a name of a public module that a guest brings. Raises AttributeError where none does that is here.

    Args:
        among: "names" of public modules, or "classes" of compressors.
    """
    guest = _bringing(among, name)
    if guest is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    if not guest.is_here:
        raise AttributeError(f"{module}.{name} {guest.missing}")
    return guest.named(getattr(guest, among)[name])


def offered(names: Sequence[str], among: str = "names") -> list[str]:
    """Return names of a public module without those of guests that are not here; `among` as attribute()."""
    gone = {name for guest in GUESTS if not guest.is_here for name in getattr(guest, among)}
    return [name for name in names if name not in gone]


class _Earlier(ModuleType):
    """Gives the classes of a module where an earlier version had it: what is pickled names them so."""

    def __init__(self, name: str, module: str, guest: Guest | None = None) -> None:
        super().__init__(name)
        self._module, self._guest = module, guest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # tools ask all modules
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if self._guest is None:
            return getattr(importlib.import_module(f"{__package__}.{self._module}"), name)
        if not self._guest.is_here:
            raise ConfigError(f"{self.__name__}.{name} {self._guest.missing}")  # pickle hides an AttributeError
        return getattr(self._guest.imported(self._module), name)


_MOVED: dict[str, tuple[str, Guest | None]] = {
    "front.ddp.state": ("frontends.ddp.state", None),
    **{earlier: (module, guest) for guest in GUESTS for earlier, module in guest.earlier.items()},
}
for _name, (_module, _guest) in _MOVED.items():
    sys.modules[f"{__package__}.{_name}"] = _Earlier(f"{__package__}.{_name}", _module, _guest)
