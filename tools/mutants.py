"""Draw faults by a seed, make each in a copy of the checkout, and see which test of the first level finds it.

python tools/mutants.py [--seed 51] [--only NUMBER...] [--level2 | --parallel | --tests-of COMMIT]

40 are of Python, five a room, and 20 of csrc, which are built once, with switches. The table is build/mutants/table.md,
with table.json next to it; what stands there, of the same commit and seed, is not run again. What survives the first
level meets, with one of the last three options: the second level; the tests of three ranks under mpirun; or all tests
as they were at a commit, those that have been cut since among them.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import queue
import random
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import native_mutations
import python_mutations
import sanitize
from changed_tests import ELSEWHERE, FIRST_LEVEL
from mutant_runs import Copy, Fault, Outcome, nearest
from python_mutations import Mutation

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "mutants"
ROOMS = {
    "session": "hvd_compress/session/",
    "pipeline": "hvd_compress/session/pipeline.py",
    "feedback": "hvd_compress/feedback/",
    "payload": "hvd_compress/payload.py",
    "collectives": "hvd_compress/collectives/",
    "policies": "hvd_compress/policies/",
    "front ends": "hvd_compress/frontends/",
    "embedding": "hvd_compress/embedding/",
}
EACH = 5
"""Faults of a room."""
NATIVE = {"csrc/cpu/": 5, "csrc/include/": 2, "csrc/cuda/": 7, "csrc/embedding/": 3, "csrc/planner/": 3}
LEAVE_OUT = ("csrc/cpu/isa/avx", "csrc/cuda/machine.hpp")
"""What not every machine runs."""
MPIRUN = ("mpirun", "-np", "3", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
FIRST, SECOND, RANKS = "first level", "second level", "three ranks"
EQUIVALENT = {
    (
        "hvd_compress/collectives/flat.py",
        "other.steps <= own.steps and other.bytes <= own.bytes and (other != own or number < place)",
        "other.steps <= own.steps and other.bytes <= own.bytes and (other != own or number <= place)",
    ): "a collective is not compared with itself",
    (
        "csrc/cpu/pool/pool.cpp",
        "if (parts >= 4 * (helpers + 1) && asleep_.load(std::memory_order_relaxed) >= helpers) {",
        "if (parts >= 4 * (helpers + 1) || asleep_.load(std::memory_order_relaxed) >= helpers) {",
    ): "the same parts are worked at, some by the caller alone: a matter of time",
}
"""By the file and the line as the table shows it, first before and then after, why what survives is no fault."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--only", type=int, nargs="+", help="their numbers in the table")
    parser.add_argument("--limit-s", type=float, default=300.0, help="for the tests of one fault")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--any-commit", action="store_true", help="go on with the table of another one, same sources")
    stages = parser.add_mutually_exclusive_group()
    stages.add_argument("--level2", action="store_const", const=SECOND, dest="stage")
    stages.add_argument("--parallel", action="store_const", const=RANKS, dest="stage")
    stages.add_argument("--tests-of", metavar="COMMIT", help="such as that before tests were cut")
    options = parser.parse_args()
    stage = options.stage or (f"tests of {options.tests_of}" if options.tests_of else FIRST)
    texts = sources()
    table = Table(FOLDER, options.seed, texts, options.any_commit)
    wanted = [number for number in table.open(stage) if not options.only or number in options.only]
    faults = faults_of(table, wanted, texts)
    copies: queue.Queue[Copy] = queue.Queue()
    for number in range(options.at_once if stage != RANKS else 1):
        copy = Copy(ROOT, FOLDER / f"copy{number}", table.left_out, MPIRUN if stage == RANKS else ())
        copy.make(options.tests_of or "")
        copies.put(copy)

    def run(number: int) -> None:
        copy = copies.get()
        try:
            fault = table.drawn[number]
            tests = [test for test in nearest(copy.tree, fault.file) if belongs(test, stage, fault)]
            table.add(number, stage, copy.meet(faults[number], tests, level(stage), options.limit_s))
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(run, wanted))
    print(f"{FOLDER / 'table.md'}: {table.summary()}")


def sources() -> dict[str, str]:
    """Return the texts of the package and of csrc, by their paths."""
    paths = [*(ROOT / "hvd_compress").rglob("*.py"), *(ROOT / "csrc").rglob("*.?pp"), *(ROOT / "csrc").rglob("*.cu")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}


def drawn_of_python(seed: int, texts: Mapping[str, str]) -> dict[int, Mutation]:
    """Draw from each room as many, each operator as likely as any other, and no two of a line."""
    defaults = python_mutations.defaults_of(text for file, text in texts.items() if file.endswith(".py"))
    drawn: list[Mutation] = []
    for room in ROOMS.values():
        files = [file for file in texts if file.startswith(room) and _room(file) == room]
        found = [each for file in files for each in python_mutations.mutations(file, texts[file], defaults)]
        in_turn = ordered(found, random.Random(f"{seed} {room}"))
        drawn += itertools.islice((each for each in in_turn if each.parses(texts[each.file])), EACH)
    return dict(enumerate(drawn, 1))


def _room(file: str) -> str:
    """Return the narrowest room that holds a file."""
    return max((room for room in ROOMS.values() if file.startswith(room)), key=len)


def drawn_of_native(seed: int, texts: Mapping[str, str]) -> list[tuple[int, int, list[Mutation]]]:
    """Return, for each part of csrc, the first number, how many there are to be, and candidates in their order."""
    drawn, first = [], EACH * len(ROOMS) + 1
    for part, count in NATIVE.items():
        files = [file for file in texts if file.startswith(part) and not file.startswith(LEAVE_OUT)]
        found = [each for file in files for each in native_mutations.mutations(file, texts[file])]
        drawn.append((first, count, ordered(found, random.Random(f"{seed} {part}"))))
        first += count
    return drawn


def ordered(found: Sequence[Mutation], rng: random.Random) -> list[Mutation]:
    """Return faults as they are drawn: first an operator, then one of its faults; no two of a line."""
    by_operator: dict[str, list[Mutation]] = {}
    for each in found:
        by_operator.setdefault(each.operator, []).append(each)
    for faults in by_operator.values():
        rng.shuffle(faults)
    drawn: dict[tuple[str, int], Mutation] = {}
    while by_operator:
        operator = rng.choice(sorted(by_operator))
        each = by_operator[operator].pop()
        drawn.setdefault((each.file, each.line), each)
        if not by_operator[operator]:
            del by_operator[operator]
    return list(drawn.values())


def faults_of(table: Table, wanted: Sequence[int], texts: Mapping[str, str]) -> dict[int, Fault]:
    """Return what is to be written for each; those of csrc are built here."""
    faults = {}
    if any(number > EACH * len(ROOMS) for number in wanted):
        build = native_mutations.Build(ROOT, FOLDER / "native")
        table.drawn |= build.make(drawn_of_native(table.seed, texts))
        tiles = f"build/{native_mutations.TREE}/tiles.so"
        libraries = {f"hvd_compress/{build.module.name}": build.module.read_bytes(), tiles: build.tiles.read_bytes()}
        played = {"HVD_COMPRESS_TILES": tiles, "HVD_COMPRESS_TEST_EXAMPLES": sanitize.EXAMPLES}
        for number in wanted:
            faults[number] = Fault(libraries, number, played if is_of_cuda(table.drawn[number]) else {})
    for number in wanted:
        each = table.drawn[number]
        if each.file.endswith(".py"):
            faults[number] = Fault({each.file: each.applied(texts[each.file]).encode()})
    return faults


def is_of_cuda(fault: Mutation) -> bool:
    return fault.file.startswith("csrc/cuda/")


def belongs(test: str, stage: str, fault: Mutation) -> bool:
    """Whether a stage runs a file of tests, on what has the fault: kernels of CUDA, where tools/sanitize.py plays them
    on the CPU."""
    if is_of_cuda(fault):
        return test.startswith(sanitize.TESTS) and not test.endswith(sanitize.IGNORED)
    if stage == RANKS:
        return "/parallel/" in test
    return not any(folder in test for folder in (*ELSEWHERE, "tests/wheel/"))


def level(stage: str) -> Sequence[str]:
    """Return what pytest is to select."""
    return {FIRST: FIRST_LEVEL, RANKS: FIRST_LEVEL, SECOND: ("-m", "level2")}.get(stage, ())


class Table:
    """What is known of each fault, kept in a folder after each."""

    def __init__(self, folder: Path, seed: int, texts: Mapping[str, str], any_commit: bool = False) -> None:
        self.seed, self._folder, self._texts, self._lock = seed, folder, texts, threading.Lock()
        sources = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:12]
        self._key = {"seed": seed, "sources": sources, "commit": _commit()}
        known: dict[str, Any] = {}
        if (folder / "table.json").exists():
            known = json.loads((folder / "table.json").read_text())
        compared = list(self._key)[: 2 if any_commit else 3]
        same = all(known.get(name) == self._key[name] for name in compared)
        self._outcomes: dict[str, dict[str, Any]] = known["outcomes"] if same else {}
        self.left_out: dict[str, str] = known["left_out"] if same else {}
        self.drawn = drawn_of_python(seed, texts)
        self.drawn |= {int(number): Mutation(**fault) for number, fault in (known["native"] if same else {}).items()}

    def open(self, stage: str) -> list[int]:
        """Return the faults that a stage has still to try."""
        numbers = range(1, EACH * len(ROOMS) + sum(NATIVE.values()) + 1)
        known = {number: self._outcomes.get(str(number), {}) for number in numbers}
        if stage == FIRST:
            return [number for number in numbers if FIRST not in known[number]]
        survivors = [number for number in numbers if FIRST in known[number] and not _is_found(known[number])]
        return [number for number in survivors if stage not in known[number]]

    def add(self, number: int, stage: str, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes.setdefault(str(number), {})[stage] = asdict(outcome)
            native = {number: asdict(each) for number, each in self.drawn.items() if not each.file.endswith(".py")}
            known = {**self._key, "outcomes": self._outcomes, "left_out": self.left_out, "native": native}
            _write(self._folder / "table.json", json.dumps(known, indent=1))
            _write(self._folder / "table.md", self._page())
            print(f"{number} {self.drawn[number].file}:{self.drawn[number].line}: {outcome.words()}", flush=True)

    def summary(self) -> str:
        found = sum(map(_is_found, self._outcomes.values()))
        equivalent = sum(self._reason(int(number)) != "" for number in self._outcomes)
        return f"{found} of {len(self._outcomes)} found, {equivalent} are no faults"

    def _reason(self, number: int) -> str:
        each = self.drawn[number]
        return EQUIVALENT.get((each.file, *_shown(self._texts[each.file], each)), "")

    def _page(self) -> str:
        head = f"Commit {self._key['commit']}, seed {self.seed}: {self.summary()}.\n\n"
        lines = ["| | where | as it is | as it was made | found by |", "| --- | --- | --- | --- | --- |"]
        for number in sorted(map(int, self._outcomes)):
            each, outcomes = self.drawn[number], self._outcomes[str(number)]
            before, after = _shown(self._texts[each.file], each)
            words = "; ".join(f"{stage}: {Outcome(**outcome).words()}" for stage, outcome in outcomes.items())
            words += f"; no fault: {self._reason(number)}" if self._reason(number) else ""
            cells = (str(number), f"{each.file}:{each.line}", f"`{before}`", f"`{after}`", words)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        left_out = [f"- {test} {why}" for test, why in self.left_out.items()]
        return head + "\n".join([*lines, "", *(["Left out:", "", *left_out] if left_out else [])]) + "\n"


def _is_found(outcomes: Mapping[str, Any]) -> bool:
    return any(outcome["found_by"] for outcome in outcomes.values())


def _shown(text: str, each: Mutation) -> tuple[str, str]:
    """Return the line as it is and as it was made; of what was taken out, that itself."""
    if each.operator in ("statement", "argument"):
        return " ".join(text.encode()[each.start : each.end].decode().strip(" ,\n").split()), f"no {each.operator}"
    before, after = (whole.split("\n")[each.line - 1].strip() for whole in (text, each.applied(text)))
    return before, after


def _commit() -> str:
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _write(path: Path, text: str) -> None:
    """An interrupt leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
