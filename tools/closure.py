"""What each file of the checkout needs, itself and by what it needs.

Python needs what it imports (tools/imports.py). `from package import name` needs the module that defines the name: the
package's `__init__.py`, which hands on what others define, is needed itself, and what it imports is not. So a change of
natural.py does not select each test that imports TopK from the same package; whoever uses a package as a whole, or
COMPRESSORS, which names all, needs all.

Tests also need the conftest.py of their folders. Tests, helpers, tools, examples and benchmarks need what their strings
name: a file, by its path or the end of it; a dotted module; a command of hvd-compress; a program that
tests/jobs/launch.py starts. Tests and helpers also need what lies in a folder that a string names (of a package, or of
Python, where it is below the top or the reader globs).

The package needs the C++ whose functions it calls: from the binding to the header, the kernels of its family on the CPU
and on GPUs, and what these include.
"""

from __future__ import annotations

import ast
import functools
import posixpath
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from imports import Import, attributes, defined, imports_of, strings, used

SCRIPTS = ("tools/", "examples/", "benchmarks/")
"""Python that is started by its path, and so imports from its own folder."""
ROOTS = ("", "tools/", "examples/")
"""From where tests import."""
CLI, LAUNCH, PROGRAMS = "hvd_compress/cli/", "tests/jobs/launch.py", "/programs/"
COMPILED = {
    "hvd_compress/native/module.py": ("csrc/bindings/module.cpp", "csrc/cuda/interface.cu"),
    "hvd_compress/netlab/relay.py": ("csrc/netlab/main.cpp",),
}
"""What else is compiled for a module: it is not followed where it includes everything."""
SITE = {"tools/build_docs.py": "docs"}
"""What builds of a folder."""
FAMILY = re.compile(r"csrc/include/hvd_compress/(\w+)\.hpp")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
BOUND = re.compile(r'(?:module\.def\(|class_<\w+>\(module, )"(\w+)"')
DOTTED = re.compile(r"\b(?:hvd_compress|tests)(?:\.\w+)+")

READ = 10
"""Steps to what is not followed: a test of something else notices little there."""
Needs = dict[str, bool]
"""Files, and whether what they need is needed, too."""


def checkout(root: Path, more: Iterable[str] = ()) -> Checkout:
    """Return git's files and those that it does not ignore, with more that may be gone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Checkout(root, [*filter(None, listed.stdout.split("\0")), *more])


class Checkout:
    """Files and what they need.

    Args:
        root: the folder that holds them.
        files: their paths from there on; of one that is no longer there nothing is read.
    """

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self._root, self.files = root, frozenset(files)
        self._ends: dict[str, list[str]] = {}
        self._folders: dict[str, list[str]] = {}
        for file in sorted(self.files):
            self._ends.setdefault(posixpath.basename(file), []).append(file)
            for folder in _folders(file):
                self._folders.setdefault(folder, []).append(file)
        self.tests = [file for file in sorted(self.files) if re.fullmatch(r"tests/(.*/)?test_\w+\.py", file)]

    @functools.cache  # noqa: B019 (one checkout a process)
    def closure(self, file: str) -> dict[str, int]:
        """Return all that a file needs, with the number of steps to it, to what is only read READ; itself with 0."""
        steps, followed = {file: 0}, {file}
        for here in (reached := [file]):  # which grows
            for need, is_followed in self.needs(here).items():
                distance = steps[here] + (1 if is_followed else READ)
                steps[need] = min(distance, steps.get(need, distance))
                if is_followed and need not in followed:
                    followed.add(need)
                    reached.append(need)
        return steps

    def tests_of(self, changed: Iterable[str]) -> dict[str, int]:
        """Return the tests that need one of these files, with the steps to the nearest."""
        changed = set(changed)
        found = {test: [n for file, n in self.closure(test).items() if file in changed] for test in self.tests}
        return {test: min(steps) for test, steps in found.items() if steps}

    @functools.cached_property
    def _commands(self) -> list[str]:
        """The commands of hvd-compress, those of guests among them."""
        return [file for file in self._folders.get("hvd_compress", ()) if re.search(r"/cli/\w+\.py$", file)]

    @functools.cache  # noqa: B019
    def needs(self, file: str) -> Needs:
        """Return what a file needs itself."""
        found: Needs = {}
        if file.endswith(".py"):
            _add(found, self._python(file))
        elif file.startswith("csrc/") or "/cpp/" in file:
            _add(found, dict.fromkeys(self._included(file), True))
        if file in self.tests:
            _add(found, dict.fromkeys({f"{folder}/conftest.py" for folder in _folders(file)} & self.files, True))
        found.pop(file, None)
        return found

    def _python(self, file: str) -> Needs:
        tree, found = self._tree(file), Needs()
        for each in self._imports(file):
            _add(found, self._imported(file, each, tree))
        texts = strings(tree)
        _add(found, dict.fromkeys(self._named_modules(texts), True))
        if file.startswith("hvd_compress/"):
            _add(found, self._compiled(file, tree))
            return found
        _add(found, self._named_files(texts))
        if file.startswith("tests/"):
            _add(found, self._read_folders(texts, "glob(" in self._text(file)))
        _add(found, dict.fromkeys(self._folders.get(SITE.get(file, ""), ()), False))
        words = {word for text in texts for word in text.split()}
        if CLI + "main.py" in found or "hvd-compress" in words:
            commands = {"main", *(word.replace("-", "_") for word in words)}
            named = (each for each in self._commands if posixpath.basename(each)[:-3] in commands)
            _add(found, dict.fromkeys(named, True))
        if LAUNCH in found:
            ends = tuple(f"{PROGRAMS}{word}.py" for word in words)
            _add(found, dict.fromkeys((each for each in self._folders["tests"] if each.endswith(ends)), True))
        return found

    def _imported(self, file: str, each: Import, tree: ast.AST) -> Needs:
        """Return the files of one import in a file, those of the packages on the way among them."""
        target = self._module(each.module, file)
        if target is None:
            return {}
        found = dict.fromkeys({f"{folder}/__init__.py" for folder in _folders(target)} & self.files, False)
        names = {each.name} if each.name else None
        if target.endswith("__init__.py"):
            inner = self._module(f"{each.module}.{each.name}", file) if each.name else None
            target = inner or target
            if inner or not each.name:
                names = attributes(tree, each.bound)
        if names is None or not target.endswith("__init__.py"):
            return found | {target: True}
        for name in names:
            _add(found, self._defining(target, name))
        return found

    def _defining(self, package: str, name: str) -> Needs:
        """Return the files that define a name of a package, whose `__init__.py` is given."""
        dotted = posixpath.dirname(package).replace("/", ".")
        if inner := self._module(f"{dotted}.{name}", package):
            return {package: False, inner: True}
        imports = imports_of(self._tree(package), dotted, typing=True)  # a package may import what is named, when it is
        handed_on = {each.bound: each for each in imports if each.module != dotted}
        if name in handed_on:
            return {package: False, **self._imported(package, handed_on[name], ast.Module([], []))}
        for statement in self._tree(package).body:
            if name in defined(statement):
                found: Needs = {package: False}
                for each in [*imports_of(statement), *(handed_on[use] for use in used(statement) & handed_on.keys())]:
                    _add(found, self._imported(package, each, statement))
                return found
        return {package: True}

    def _module(self, module: str, file: str) -> str | None:
        """Return the file of a module that a file imports."""
        own = f"{posixpath.dirname(file)}/" if file.startswith(SCRIPTS) or PROGRAMS in file else ""
        path = module.replace(".", "/")
        candidates = (f"{root}{path}{end}" for root in (own, *ROOTS) for end in ("/__init__.py", ".py"))
        return next((candidate for candidate in candidates if candidate in self.files), None)

    def _named_modules(self, texts: Iterable[str]) -> Iterator[str]:
        for dotted in (dotted for text in texts for dotted in DOTTED.findall(text)):
            while not (found := self._module(dotted, "")) and dotted:
                dotted = dotted.rpartition(".")[0]
            if found and "." in dotted:
                yield found

    def _named_files(self, texts: Iterable[str]) -> Needs:
        """Return the files whose path, or the end of it, is a string: of several, that of the top."""
        found: Needs = {}
        for path in map(_path, texts):
            end = posixpath.basename(path)
            if ("." in end or path in self.files) and end not in ("__init__.py", "conftest.py"):
                named = [file for file in self._ends.get(end, ()) if f"/{file}".endswith(f"/{path}")]
                if "/" not in path and len(named) > 1:
                    named = [path] if path in named else [file for file in named if not file.startswith("benchmarks/")]
                found |= dict.fromkeys(named, True)
        return found

    def _read_folders(self, texts: Iterable[str], globs: bool) -> Needs:
        found: Needs = {}
        for path in map(_path, texts):
            whole, is_package = globs or "/" in path, f"{path}/__init__.py" in self.files
            if whole or not is_package:
                inside = [file for file in self._folders.get(path, ()) if whole or not file.endswith(".py")]
                found |= dict.fromkeys(inside, False)  # they are not run
        return found

    def _compiled(self, file: str, tree: ast.AST) -> Needs:
        found = dict.fromkeys({*COMPILED.get(file, ())} & self.files, file.startswith("hvd_compress/netlab/"))
        if any(each.bound in ("compiled", "on", "module") for each in self._imports(file)):
            called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            found |= {source: True for source, names in self._bound.items() if names & called}
        return found

    @functools.cached_property
    def _bound(self) -> dict[str, set[str]]:
        """The names that Python knows of each source of C++."""
        return {file: set(BOUND.findall(self._text(file))) for file in self._folders.get("csrc/bindings", ())}

    def _included(self, file: str) -> Iterator[str]:
        for name in INCLUDE.findall(self._text(file)):
            for folder in (posixpath.dirname(file), "csrc/include"):
                if (header := posixpath.normpath(f"{folder}/{name}")) in self.files:
                    yield header
                    yield from {f"{posixpath.splitext(header)[0]}{end}" for end in (".cpp", ".cu")} & self.files
        if family := FAMILY.fullmatch(file):
            for side in ("cpu", "cuda"):
                yield from self._folders.get(f"csrc/{side}/{family[1]}", ())

    def _imports(self, file: str) -> list[Import]:
        return list(imports_of(self._tree(file), posixpath.dirname(file).replace("/", ".")))

    @functools.cache  # noqa: B019
    def _tree(self, file: str) -> ast.Module:
        return ast.parse(self._text(file), filename=file)

    def size(self, file: str) -> int:
        """Return how long a file is."""
        return len(self._text(file))

    def _text(self, file: str) -> str:
        path = self._root / file
        return path.read_text() if path.exists() else ""


def _path(text: str) -> str:
    return posixpath.normpath(text).removeprefix("./") if 0 < len(text) < 200 else ""


def _folders(file: str) -> Iterator[str]:
    while file := posixpath.dirname(file):
        yield file


def _add(found: Needs, more: Needs) -> None:
    for file, is_followed in more.items():
        found[file] = is_followed or found.get(file, False)
