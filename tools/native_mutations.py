"""Faults in csrc, all of them compiled at once: HVD_MUTANT=N in the environment switches number N on, 0 none.

In a copy of csrc, `if (a < b)` becomes `if ((hvd_mutant == 7 ? (a <= b) : (a < b)))`, and `x += y;` becomes
`if (hvd_mutant != 8) x += y;`. What does not compile so is left out, and the next of the list is tried.

Code is read by lines: a condition, what is returned or assigned, or a statement, each within one line.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from python_mutations import Mutation

SWITCH = "extern int hvd_mutant;\n"
READ = '#include <cstdlib>\nint hvd_mutant = std::getenv("HVD_MUTANT") ? std::atoi(std::getenv("HVD_MUTANT")) : 0;\n'
READERS = ("csrc/cpu/pool/hvd_mutant.cpp", "csrc/cuda/hvd_mutant.cu")
"""One for each of the two libraries, where CMakeLists.txt finds it."""
OPERATORS = [
    ("comparison", r" (<=|>=|<|>|==|!=) ", {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}),
    ("and/or", r" (&&|\|\|) ", {"&&": "||", "||": "&&"}),
    ("arithmetic", r" ([-+*/]) ", {"+": "-", "-": "+", "*": "/", "/": "*"}),
    ("bits", r" (<<|>>|&|\|) ", {"<<": ">>", ">>": "<<", "&": "|", "|": "&"}),
    ("min/max", r"std::(min|max)\b", {"min": "max", "max": "min"}),
    ("not", r"(?<![\w)])(!)(?=[\w(])", {"!": ""}),
    ("integer", r"(?<![\w.])(\d+)(?=u?l*\b(?!\.))", {}),
]
NOT_RUN = re.compile(r"#\s*if.*(__CUDA|FIBERS|HVD_COMPRESS_X86|NDEBUG)")
"""Blocks of which this build, or this machine, may compile the other half."""
DECLARES = re.compile(r"^\s*(static_assert|constexpr|static|template|using|typedef|case|extern|friend)\b|\bconstexpr\b")
CALL_OR_ASSIGNMENT = re.compile(r"\s*(?:(?:\+\+|--)[\w.>\[\]-]+|[\w.:>\[\]-]+(?:\(.*\)|(?:\+\+|--)| [-+*/|&^]?= .*));$")
KEYWORDS = re.compile(r"\s*(return|throw|else|do|goto)\b")
TREE = f"native-{sys.implementation.cache_tag}"
"""Where setup.py builds."""
ROUNDS = 12
"""Builds, each of which may find that some do not compile."""


def code_of(text: str) -> str:
    """Return a source of the same length without comments, strings and what this build may leave out."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\])\'', _blank, text, flags=re.DOTALL)
    lines, depth = [], [False]
    for line in text.split("\n"):
        if re.match(r"\s*#\s*if", line):
            depth.append(depth[-1] or bool(NOT_RUN.match(line.strip())))
        lines.append(" " * len(line) if depth[-1] or line.lstrip().startswith("#") else line)
        if re.match(r"\s*#\s*endif", line):
            depth.pop()
    return "\n".join(lines)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def mutations(file: str, text: str) -> list[Mutation]:
    """Return the faults for a source; `start` and `end` are those of the whole expression that is switched."""
    found, before, position = [], "{", 0
    code = code_of(text).split("\n")
    for number, line in enumerate(code):
        follows = next((later for later in code[number + 1 :] if later.strip()), "")
        if line.strip() and not DECLARES.search(line) and before.rstrip().endswith((";", "{", "}", ")", ":")):
            for operator, start, end, mutated in _faults(line, text[position : position + len(line)], follows):
                begin = len(text[: position + start].encode())
                size = len(text[position + start : position + end].encode())
                found.append(Mutation(file, number + 1, operator, begin, begin + size, mutated))
        before = line if line.strip() else before
        position += len(line) + 1
    return found


def _faults(code: str, line: str, follows: str) -> Iterator[tuple[str, int, int, str]]:
    for start, end in _expressions(code):
        expression = line[start:end]
        for operator, pattern, words in OPERATORS:
            for match in re.finditer(pattern, code[start:end]):
                new = words.get(match[1]) if words else str(int(match[1], 8 if match[1][0] == "0" else 10) + 1)
                yield operator, start, end, expression[: match.start(1)] + str(new) + expression[match.end(1) :]
        if re.search(r"\bif \($", code[:start]):
            yield from (("condition", start, end, value) for value in ("true", "false"))
    is_whole = CALL_OR_ASSIGNMENT.fullmatch(code) and code.count("(") == code.count(")")
    if is_whole and not KEYWORDS.match(code) and not follows.lstrip().startswith("else"):
        yield "statement", len(code) - len(code.lstrip()), len(code), ""


def _expressions(code: str) -> Iterator[tuple[int, int]]:
    """Yield where conditions, and what is returned or assigned, begin and end in a line."""
    for match in re.finditer(r"\b(if|while|for) \(", code):
        end = _closing(code, match.end())
        parts = [place for place in range(match.end(), end) if code[place] == ";"]
        if match[1] != "for":
            yield (parts[-1] + 2 if parts else match.end()), end
        elif len(parts) == 2:
            yield parts[0] + 2, parts[1]
    if match := re.search(r"\breturn (?=[^;{]+;)|^(?!.*\b(?:for|if|while) \().* [-+*/|&^]?= (?=[^;{]+;$)", code):
        yield match.end(), _closing(code, match.end())


def _closing(code: str, start: int) -> int:
    """Return where an expression ends: at a bracket that it did not open, a comma or a semicolon outside of all."""
    depth = 0
    for place in range(start, len(code)):
        depth += (code[place] in "([{") - (code[place] in ")]}")
        if depth < 0 or (depth == 0 and code[place] == "," and code[:start].rstrip()[-1:] != "("):
            return place
        if depth == 0 and code[place] == ";" and code[:start].rstrip()[-1:] != "(":
            return place
    return start


def switched(text: str, faults: Mapping[int, Mutation]) -> str:
    """Return a source with faults that their numbers switch on, on as many lines as before."""
    whole = text.encode()
    for number, each in sorted(faults.items(), key=lambda item: -item[1].start):
        old = whole[each.start : each.end].decode()
        choice = f"(hvd_mutant == {number} ? ({each.mutated}) : ({old}))"
        new = f"if (hvd_mutant != {number}) {old}" if each.operator == "statement" else choice
        whole = whole[: each.start] + new.encode() + whole[each.end :]
    return whole.decode()


class Build:
    """Both libraries with all faults, in a folder that holds a copy of the sources.

    Args:
        root: the checkout, in which the extension was built.
        folder: is made.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        (module,) = (root / "hvd_compress").glob("_native*.so")
        self.module = folder / "build" / "_native" / module.name
        self.tiles = folder / "build" / "tiles.so"

    def make(self, lists: Sequence[tuple[int, int, Sequence[Mutation]]]) -> dict[int, Mutation]:
        """Build, and return the faults that compile.

        Args:
            lists: first number, how many are wanted, and from which to take them, the first ones first.
        """
        bad: set[Mutation] = set()
        self._configure()
        for _ in range(ROUNDS):
            faults = {}
            for first, count, candidates in lists:
                good = [each for each in candidates if each not in bad][:count]
                faults.update(enumerate(good, first))
            self._write(faults)
            words = ["cmake", "--build", str(self._folder / "build"), "--target", "_native", "tiles", "--", "-k", "0"]
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode == 0:
                return faults
            failed = _named(done.stdout, faults)
            if not failed:
                sys.exit(f"the copy of csrc does not compile, and no fault is named:\n{done.stdout[-3000:]}")
            bad |= failed
        sys.exit(f"after {ROUNDS} builds there are still faults that do not compile")

    def _write(self, faults: Mapping[int, Mutation]) -> None:
        for path in [path for path in (self._root / "csrc").rglob("*") if path.is_file()]:
            file = path.relative_to(self._root).as_posix()
            own = {number: each for number, each in faults.items() if each.file == file}
            _put(self._folder / file, switched(path.read_text(), own))

    def _configure(self) -> None:
        import pybind11  # of the environment

        for name in ("CMakeLists.txt", "tests/native/cpp"):
            source, target = self._root / name, self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy2(source, target)
        self._write({})
        _put(self._folder / "switch.hpp", SWITCH)
        for reader in READERS:
            _put(self._folder / reader, READ)
        options = {
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
            "HVD_COMPRESS_MODULE_NAME": self.module.name,
            "HVD_COMPRESS_RELAY": "OFF",
            "CMAKE_CXX_FLAGS": f"-include {self._folder / 'switch.hpp'}",
        }
        words = ["cmake", "--log-level=WARNING", "-S", self._folder, "-B", self._folder / "build", "-G", "Ninja"]
        subprocess.run([*words, *(f"-D{name}={value}" for name, value in options.items())], check=True)


def _named(said: str, faults: Mapping[int, Mutation]) -> set[Mutation]:
    """Return the faults whose line a compiler calls wrong, or else those that it names otherwise."""
    places = {(each.file, each.line): each for each in faults.values()}
    for pattern in (r"(csrc/[\w/]+\.\w+):(\d+):\d+: (?:fatal )?error:", r"(csrc/[\w/]+\.\w+):(\d+):"):
        lines = {(file, int(line)) for file, line in re.findall(pattern, re.sub(r"/\w+/\.\./", "/", said))}
        if found := {places[line] for line in lines & places.keys()}:
            return found
    return set()


def _put(path: Path, text: str) -> None:
    """Write a file, if it is not so already: what depends on it is compiled again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
