"""`make docs` builds the site without a warning, as GitHub shows the pages, and it works without a network.

A warning, which ends the build, is a link or an anchor that leads nowhere, a page that mkdocs.yml does not name, or a
docstring that does not fit its function.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from hvd_compress.compression import Compression

ROOT = Path(__file__).parents[3]
BUILDER = ROOT / "tools" / "build_docs.py"
FROM_ANOTHER_HOST = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?https?://"""
)
COMPRESSION = "hvd_compress.compression.Compression"
ELEMENTS = ("li", "tr", "pre", "img")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run([sys.executable, BUILDER, folder], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    """The body of each page that has a source, without what surrounds it."""
    bodies = {}
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).with_suffix(".md")
        source = ROOT / (name.with_name("README.md") if name.stem == "index" else name)
        if source.exists():
            bodies[source] = path.read_text().partition("<article")[2].partition("</article>")[0]
    return bodies


def test_lists_and_tables_are_those_of_github(pages: dict[Path, str]) -> None:
    commonmark = MarkdownIt("commonmark").enable("table")
    assert len(pages) > 40
    for source, body in pages.items():
        if source.parent.name != "api":
            here, there = (
                {e: len(re.findall(rf"<{e}\b", html)) for e in ELEMENTS}
                for html in (body, commonmark.render(source.read_text()))
            )
            assert here == there, f"{source}: {here} elements on the site, {there} on GitHub"


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    assert [str(path) for path in site.rglob("*.html") if FROM_ANOTHER_HOST.search(path.read_text())] == []


@pytest.mark.parametrize("source", sorted(ROOT.glob("docs/api/*.md")), ids=lambda path: path.stem)
def test_the_reference_has_all_public_names(source: Path, pages: dict[Path, str]) -> None:
    name, *_ = re.findall(r"^::: ([\w.]+)$", source.read_text(), re.MULTILINE)
    documented = set(re.findall(rf'id="{re.escape(name)}\.(?:\w+\.)*(\w+)"', pages[source]))
    public = {each for each in dir(Compression) if not each.startswith("_")} if name == COMPRESSION else exported(name)
    assert public
    assert public <= documented, f"{name}: without a docstring: {sorted(public - documented)}"


def exported(module: str) -> set[str]:
    """Return what `__all__` names; of hvd_compress.torch, what is not Horovod's. Read: importing takes seconds."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    (names,) = (
        ast.literal_eval(statement.value)
        for statement in ast.parse(source.read_text()).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets) == "__all__"
    )
    return set(names)
