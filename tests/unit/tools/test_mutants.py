"""Seeded faults: how they are drawn and made, and that each is undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[3] / "tools"
PYTHON = '''
def f(a, b=1, *, named=0) -> bool:
    """1 < 2."""
    if not a and b <= 2:
        raise ValueError(f"{a + 1} < 2")
    log.warning("it is", 7)
    a.append(min(a, b))
    f(a, b=2)
    assert a == 3
    return a is b
'''
PYTHON_FAULTS = [
    ("not", "if a and b <= 2:"),
    ("and/or", "if not a or b <= 2:"),
    ("comparison", "if not a and b < 2:"),
    ("integer", "if not a and b <= 3:"),
    ("condition", "if True:"),
    ("condition", "if False:"),
    ("statement", "pass"),
    ("min/max", "a.append(max(a, b))"),
    ("argument", "f(a)"),
    ("integer", "f(a, b=3)"),
    ("returned bool", "return not (a is b)"),
    ("comparison", "return a is not b"),
    ("integer", "def f(a, b=2, *, named=0) -> bool:"),
    ("integer", "def f(a, b=1, *, named=1) -> bool:"),
]
CPP = """
#ifdef __CUDACC__
int never(int a) { return a + 1; }
#endif
constexpr int kBits = 4;
int f(int a, int b) {
    // a < b
    if (a < 1) return g("a + b", a);
    for (int i = 0; i < b; ++i) total += i;
    total = std::min(a, b);
    g(a,
      b);
    ++total;
    return !total;
}
"""
TWICE = "tests/test_found.py::test_twice"
CPP_FAULTS = [
    ("comparison", 'if ((hvd_mutant == 7 ? (a <= 1) : (a < 1))) return g("a + b", a);'),
    ("integer", 'if ((hvd_mutant == 7 ? (a < 2) : (a < 1))) return g("a + b", a);'),
    ("condition", 'if ((hvd_mutant == 7 ? (true) : (a < 1))) return g("a + b", a);'),
    ("condition", 'if ((hvd_mutant == 7 ? (false) : (a < 1))) return g("a + b", a);'),
    ("comparison", "for (int i = 0; (hvd_mutant == 7 ? (i <= b) : (i < b)); ++i) total += i;"),
    ("min/max", "total = (hvd_mutant == 7 ? (std::max(a, b)) : (std::min(a, b)));"),
    ("statement", "if (hvd_mutant != 7) total = std::min(a, b);"),
    ("statement", "if (hvd_mutant != 7) ++total;"),
    ("not", "return (hvd_mutant == 7 ? (total) : (!total));"),
]


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


def changed(before: str, after: str) -> str:
    """Return the one line that differs."""
    ((_, line),) = [pair for pair in zip(before.split("\n"), after.split("\n"), strict=True) if pair[0] != pair[1]]
    return line.strip()


def test_faults_of_python() -> None:
    import python_mutations

    faults = python_mutations.mutations("a.py", PYTHON, python_mutations.defaults_of([PYTHON]))
    found = [(each.operator, changed(PYTHON, each.applied(PYTHON))) for each in faults]
    statements = found.count(("statement", "pass"))
    assert statements == 2  # the call of append() and that of f()
    assert sorted(found) == sorted([*PYTHON_FAULTS, ("statement", "pass")])
    assert all(each.parses(PYTHON) for each in faults)


def test_faults_of_csrc() -> None:
    import native_mutations

    faults = native_mutations.mutations("a.cpp", CPP)
    found = [(each.operator, changed(CPP, native_mutations.switched(CPP, {7: each}))) for each in faults]
    assert sorted(found) == sorted(CPP_FAULTS)


def test_a_compiler_names_faults() -> None:
    import native_mutations

    one, two = (native_mutations.Mutation(f"csrc/cpu/{name}.cpp", 7, "not", 0, 1, "") for name in ("one", "two"))
    said = "/tmp/a/csrc/cpu/two.cpp:7:3: note: in this\n/tmp/a/csrc/cpu/topk/../one.cpp:7:12: error: not so"
    assert native_mutations._named(said, {1: one, 2: two}) == {one}
    assert native_mutations._named(said.splitlines()[0], {1: one, 2: two}) == {two}


def test_what_is_drawn_follows_from_the_seed() -> None:
    import mutants

    texts = {file: PYTHON for file in ("hvd_compress/session/a.py", "hvd_compress/payload.py", "hvd_compress/ddp.py")}
    drawn = mutants.drawn_of_python(51, texts)
    assert drawn == mutants.drawn_of_python(51, dict(reversed(texts.items())))
    assert drawn != mutants.drawn_of_python(52, texts)
    assert [each.file for each in drawn.values()] == 5 * ["hvd_compress/session/a.py"] + 5 * ["hvd_compress/payload.py"]
    assert len({(each.file, each.line) for each in drawn.values()}) == 10


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    """A module and its tests, one of which fails by itself."""
    import mutant_runs

    (tmp_path / "tests").mkdir()
    (tmp_path / "found.py").write_text("def twice(x):\n    return x + x")
    tests = """
        import found
        def test_fails_anyway():
            assert found.twice(1) == 3
        def test_twice():
            assert found.twice(3) == 6
    """
    (tmp_path / "tests" / "test_found.py").write_text("\n".join(line[8:] for line in tests.split("\n")))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    return mutant_runs.Copy(tmp_path, tmp_path)


def test_who_finds_a_fault(copy: Any) -> None:
    from mutant_runs import Fault

    before = (copy.folder / "found.py").read_text()
    outcome = copy.meet(Fault({"found.py": b"def twice(x):\n    return x * x"}), ["tests/test_found.py"], (), 300)
    assert (outcome.found_by, outcome.how) == ("tests/test_found.py::test_twice", "fails")
    assert copy.left_out == {"tests/test_found.py::test_fails_anyway": "fails without a fault"}
    assert (copy.folder / "found.py").read_text() == before

    outcome = copy.meet(Fault({"found.py": b"def twice(x):\n    return 2 * x"}), ["tests/test_found.py"], (), 300)
    assert (outcome.found_by, outcome.tests, outcome.is_complete) == ("", 1, True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", ("pytest itself", "crashes")),
        ("def twice(x):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)", (TWICE, "crashes")),
        ("def twice(:", ("tests/test_found.py", "cannot be collected")),
    ],
    ids=["at once", "in a test", "no Python"],
)
def test_how_faults_end(copy: Any, text: str, found: tuple[str, str]) -> None:
    import mutant_runs

    copy.left_out["tests/test_found.py::test_fails_anyway"] = "known"
    outcome = copy.meet(mutant_runs.Fault({"found.py": text.encode()}), ["tests/test_found.py"], (), 300)
    assert (outcome.found_by, outcome.how) == found


@pytest.mark.parametrize(("clean_s", "found"), [(2.0, (TWICE, "hangs")), (100.0, ("", ""))])
def test_what_hangs_is_compared_with_itself(
    copy: Any, monkeypatch: pytest.MonkeyPatch, clean_s: float, found: tuple[str, str]
) -> None:
    from mutant_runs import Fault, Ran

    passes, hangs = ("tests/test_found.py::test_a", "PASSED"), Ran(None, [], TWICE, True, 120.0, [])
    runs = [hangs, Ran(0, [passes], "", False, clean_s, []), Ran(0, [passes], "", False, 1.0, [])]
    monkeypatch.setattr(copy, "_with", lambda *_: runs.pop(0))
    outcome = copy.meet(Fault({"found.py": b""}), ["tests/test_found.py"], (), 300)
    assert (outcome.found_by, outcome.how) == found


def test_a_library_is_the_same_without_its_fault() -> None:
    from mutant_runs import Fault

    assert Fault({"a.so": b"a"}, 7).undone() == Fault({"a.so": b"a"}, 0)
    assert Fault({"a.py": b"a"}).undone() == Fault({})


def test_the_table_shows_what_is_another() -> None:
    import mutants
    import python_mutations

    faults = python_mutations.mutations("a.py", PYTHON, python_mutations.defaults_of([PYTHON]))
    shown = {each.operator: mutants._shown(PYTHON, each) for each in faults}
    assert shown["and/or"] == ("if not a and b <= 2:", "if not a or b <= 2:")
    assert shown["not"] == ("if not a and b <= 2:", "if a and b <= 2:")
    assert shown["argument"] == ("b=2", "no argument")


def test_the_table_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mutants
    from mutant_runs import Outcome

    monkeypatch.setattr(mutants, "_commit", lambda: "abc")
    texts = {"hvd_compress/payload.py": PYTHON}
    table = mutants.Table(tmp_path, 51, texts)
    table.add(1, mutants.FIRST, Outcome("tests/test_a.py::test_a", "fails", 1.0, 3))
    table.add(2, mutants.FIRST, Outcome(tests=9, seconds=2.0))
    again = mutants.Table(tmp_path, 51, texts)
    assert 1 not in again.open(mutants.FIRST)
    assert again.open(mutants.SECOND) == [2]
    assert "1 of 2 found" in (tmp_path / "table.md").read_text()
    assert "**survived** 9 tests" in (tmp_path / "table.md").read_text()
    assert mutants.Table(tmp_path, 52, texts).open(mutants.SECOND) == []
    monkeypatch.setattr(mutants, "_commit", lambda: "def")
    assert mutants.Table(tmp_path, 51, texts).open(mutants.SECOND) == []
    assert mutants.Table(tmp_path, 51, texts, any_commit=True).open(mutants.SECOND) == [2]
