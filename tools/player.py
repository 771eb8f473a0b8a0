"""Play the CUDA kernels on the CPU as a GPU runs them: all threads at once, and what orders their memory checked.

tests/native/cpp/player/fibers.hpp says how. `make sanitize-rest` tests with it (tests/player); mutate_cuda.py tests it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import progress

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / f"native-{sys.implementation.cache_tag}"  # where setup.py builds
CLEAN, FOUND = 0, 66
"""Exit statuses of a program that plays."""
FINDING = re.compile(
    r"^(?P<what>race|misaligned|divergent-\w+|another-threads-register|hosts-memory|beyond-memory) 0x(?P<place>\w+)"
)


class PlayerError(Exception):
    """A program that plays has ended otherwise than by what it found."""


@dataclass(frozen=True)
class Played:
    """What one run said.

    Attributes:
        results: checksums, by the case and the name of the result.
        findings: "race in tile.hpp:28 of topk/collect.hpp:150", each once.
        places: of what orders memory in the code, by address: "barrier", "atomic" or "ticket".
    """

    results: dict[str, str]
    findings: list[str]
    places: dict[int, str]


def build(log: Path) -> None:
    """Build the programs, in the folder of the native extension, which exists."""
    targets = ["played_in_turn", "played_at_once", "played_defects"]
    progress.run("building the CUDA kernels for the player", ["cmake", "--build", BUILD, "--target", *targets], log)


def play(name: str, *options: str, timeout_s: float | None = None) -> Played:
    """Run a program.

    Raises:
        PlayerError: it crashed.
        subprocess.TimeoutExpired: it ran for longer than `timeout_s`.
    """
    command = [BUILD / name, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if ended.returncode not in (CLEAN, FOUND):
        words = " ".join(str(word) for word in command)
        raise PlayerError(
            f"{words} ended with exit code {ended.returncode}: {ended.stdout[-500:]}{ended.stderr[-500:]}"
        )
    results, found, places = {}, [], {}
    for line in ended.stdout.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "result":
            result, _, checksum = rest.rpartition(" ")
            results[result] = checksum
        elif kind in ("barrier", "atomic", "ticket"):
            places[int(rest, 16)] = kind
        elif match := FINDING.match(line):
            found.append((match["what"], int(match["place"], 16)))
    chains = chains_of(BUILD / name, {place for _, place in found})
    findings = sorted({f"{what} in {' of '.join(chains[place][:3])}" for what, place in found})
    return Played(results, findings, places)


def chains_of(program: Path, places: Iterable[int]) -> dict[int, list[str]]:
    """Return the line of source of each address, "tile.hpp:28", and those that it was inlined at, up to a kernel's."""
    addresses = list(places)
    if not addresses:
        return {}
    command = ["addr2line", "--exe", str(program), "--addresses", "--inlines"]
    # A place is where a call returns to, which may be another line.
    words = "\n".join(f"{address - 1:#x}" for address in addresses)
    said = subprocess.run(command, input=words, capture_output=True, text=True, check=True).stdout
    chunks = [chunk.splitlines()[1:] for chunk in re.split(r"^(?=0x)", said, flags=re.MULTILINE) if chunk]
    return {address: _own(chunk) for address, chunk in zip(addresses, chunks, strict=True)}


def _own(chain: Sequence[str]) -> list[str]:
    """Leave out the machine and what runs a kernel; name files as their folder does."""
    lines = [re.sub(r"^.*/(csrc/cuda|tests/native/cpp)/", "", os.path.normpath(line.split(" (")[0])) for line in chain]
    return [line for line in lines if not line.startswith(("machine.hpp", "launch.hpp"))] or lines[:1]
