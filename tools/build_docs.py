"""Build the site from README, docs/, the pages of results and the docstrings of the public modules: `make docs`.

usage: build_docs.py [SITE]

mkdocs wants all pages in one folder. They are copied into one in the layout of the repository, with whatever else they
link to, so that a link is the same on the site, on disk and on GitHub. A warning is an error: a link or an anchor that
leads nowhere, a page that mkdocs.yml does not name, a docstring that names no parameter.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import progress

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SITE = BUILD / "site"
LOG = BUILD / "docs.log"
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docker/README.md", "docs/**/*.md", "benchmarks/results/*.md")
_LINK = re.compile(r"\]\(([^)#\s]+)")


def main() -> None:
    site = Path(sys.argv[1]).resolve() if sys.argv[1:] else SITE
    BUILD.mkdir(exist_ok=True)
    LOG.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="docs-", dir=BUILD) as folder:
        copy_pages(Path(folder))
        environment = {**os.environ, "PAGES": folder, "NO_MKDOCS_2_WARNING": "1"}
        mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
        progress.run("building the site", [*mkdocs, "--config-file", ROOT / "mkdocs.yml"], LOG, environment)
    print(f"  open {site / 'index.html'}, or, to search, run: python -m http.server -d {site}", flush=True)


def copy_pages(folder: Path) -> None:
    """Copy the pages, and the files that they link to."""
    pages = [page for pattern in PAGES for page in ROOT.glob(pattern)]
    for path in sorted({*pages, *(target for page in pages for target in linked(page))}):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def linked(page: Path) -> Iterator[Path]:
    """Return the files of this checkout that a page links to."""
    for target in _LINK.findall(page.read_text()):
        path = (page.parent / target).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


if __name__ == "__main__":
    os.chdir(ROOT)
    progress.main(main)
