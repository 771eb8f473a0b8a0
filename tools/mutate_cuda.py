"""Test the player: leave out each barrier and each atomic of the CUDA kernels, and see whether it finds that.

python tools/mutate_cuda.py [WORD...]: those whose line holds a word, or all. What survives is redundant or hides from
the tests; docs/gpu-kernels.md says what became of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import player
import progress

LOG = player.ROOT / "build" / "mutate" / "log"
SEEDS = 3
TIMEOUT_S = 300.0
"""Of one run; without a mutation it takes a fifteenth of it."""


def main() -> None:
    player.build(LOG)
    right = player.play("played_in_turn").results
    clean = player.play("played_at_once", "--places")
    if clean.findings or clean.results != right:
        raise progress.StepError(f"the kernels as they are do not pass: {clean.findings[:5]}")
    mutations = {line: places for line, places in _mutations(clean.places).items() if _is_asked_for(line)}
    print(f"{len(mutations)} mutations", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        endings = list(pool.map(lambda line: _end(line, mutations[line], right), mutations))
    survivors = [line for line, ending in zip(mutations, endings, strict=True) if ending is None]
    print(f"{len(mutations) - len(survivors)} of {len(mutations)} found; survivors:", *survivors, sep="\n  ")


def _is_asked_for(line: str) -> bool:
    words = sys.argv[1:]
    return not words or any(word in line for word in words)


def _mutations(places: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the addresses of each barrier and each atomic of the source; what is inlined, or a template, has many."""
    chains = player.chains_of(player.BUILD / "played_at_once", places)
    source = (player.ROOT / "csrc/cuda/block.hpp").read_text().splitlines()
    sync = f"block.hpp:{1 + next(i for i, line in enumerate(source) if 'void sync()' in line and 'barrier' in line)}"
    found = defaultdict(list)
    for address, kind in places.items():
        line = next(line for line in chains[address] if line != sync)
        found[f"{kind} {line}"].append(address)
    return dict(sorted(found.items()))


def _end(line: str, places: Sequence[int], right: Mapping[str, str]) -> str | None:
    """Return how the mutation was found, if it was."""
    ending = None
    for seed in range(SEEDS):
        ending = ending or _found([word for place in places for word in ("--leave-out", hex(place))], seed, right)
    print(f"  {line}: {ending or 'SURVIVES'}", flush=True)
    return ending


def _found(mutation: Sequence[str], seed: int, right: Mapping[str, str]) -> str | None:
    try:
        played = player.play("played_at_once", "--stop-at-first", "--seed", str(seed), *mutation, timeout_s=TIMEOUT_S)
    except (player.PlayerError, subprocess.TimeoutExpired) as error:
        return str(error)[:100]
    if played.findings:
        return played.findings[0]
    return None if played.results == right else "another result"


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    progress.main(main)
