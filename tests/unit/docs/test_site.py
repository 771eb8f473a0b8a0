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

from markdown_it import MarkdownIt

from hvd_compress.compression import Compression
from hvd_compress.frontends.handle import Handle

ROOT = Path(__file__).parents[3]
BUILDER = ROOT / "tools" / "build_docs.py"
FROM_ANOTHER_HOST = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?https?://"""
)
CLASSES = {
    "hvd_compress.compression.Compression": dir(Compression),
    "hvd_compress.frontends.handle.Handle": dir(Handle),
    "hvd_compress.request.request.Request": ["by", "with_feedback"],
}
"""What a page has of a class; of a module it has all names."""
ELEMENTS = ("li", "tr", "pre", "img")


def test_the_site(tmp_path: Path) -> None:
    """One test, as workers that share several would each build the site."""
    built = subprocess.run([sys.executable, BUILDER, tmp_path], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = bodies(tmp_path)
    assert len(pages) > 40
    for source, body in pages.items():
        if source.parent.name == "api":
            check_reference(source, body)
        else:
            check_elements(source, body)
    assert [str(path) for path in tmp_path.rglob("*.html") if FROM_ANOTHER_HOST.search(path.read_text())] == []


def bodies(site: Path) -> dict[Path, str]:
    """Return the body of each page by its source, without what surrounds it."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).with_suffix(".md")
        source = ROOT / (name.with_name("README.md") if name.stem == "index" else name)
        if source.exists():
            found[source] = path.read_text().partition("<article")[2].partition("</article>")[0]
    return found


def check_elements(source: Path, body: str) -> None:
    """Lists, tables and pictures are those that GitHub shows, by the rules of CommonMark."""
    commonmark = MarkdownIt("commonmark").enable("table").render(source.read_text())
    here, there = ({each: len(re.findall(rf"<{each}\b", html)) for each in ELEMENTS} for html in (body, commonmark))
    assert here == there, f"{source}: {here} elements on the site, {there} on GitHub"


def check_reference(source: Path, body: str) -> None:
    """A page of docs/api/ has all public names of its module, or of each of its classes."""
    names = re.findall(r"^::: ([\w.]+)$", source.read_text(), re.MULTILINE)
    assert names
    for name in names:
        documented = set(re.findall(rf'id="{re.escape(name)}\.(\w+)"', body))
        public = {each for each in CLASSES[name] if not each.startswith("_")} if name in CLASSES else exported(name)
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
