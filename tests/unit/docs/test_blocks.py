"""Every block of Python in README and docs/ runs; blocks.py says of which kinds they are, and what they run with."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.jobs.launch import launch
from tests.netlab.rights import require_lab
from tests.unit.docs.blocks import KINDS, PAGES, Page, all_blocks, check, run_pages


def blocks_of(kind: str) -> list[str]:
    return [place for page in PAGES for place in Page(page).places(kind)]


def test_each_block_is_of_one_kind() -> None:
    assert sorted(place for kind in KINDS for place in blocks_of(kind)) == sorted(all_blocks())


@pytest.mark.parametrize("page", [page for page in PAGES if Page(page).places("plain")], ids=lambda path: path.stem)
def test_blocks_of_one_process(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Page(page).run("plain")


def test_blocks_with_a_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_lab()
    monkeypatch.chdir(tmp_path)
    run_pages("lab")


def test_blocks_that_cannot_run_here() -> None:
    """They are compiled, and what they import has what they use of it."""
    run_pages("no")


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("import hvd_compress.ddp as hc\nhc.compres(model)", "compres"),
        ("from hvd_compress.embedding import Tables", "Tables"),
        ("import hvd_compress.ddp as hc\nhc.compress(model, how=1)", "takes no how"),
        ("model = (", "never closed"),
    ],
)
def test_what_is_not_there_is_found_without_running(source: str, missing: str) -> None:
    with pytest.raises((AttributeError, ImportError, AssertionError, SyntaxError), match=missing):
        check(source)


def test_python_is_in_fences() -> None:
    """What is indented is a command line, or what one prints: nothing else runs it, or highlights it."""
    for page in PAGES:
        for token in MarkdownIt("commonmark").parse(page.read_text()):
            if token.type == "code_block":
                with pytest.raises(SyntaxError):
                    ast.parse(token.content)


@pytest.mark.parametrize("kind", [kind for kind, launcher in KINDS.items() if launcher and blocks_of(kind)])
def test_blocks_of_two_ranks(kind: str) -> None:
    job = launch(KINDS[kind], "documented", kind)
    assert job.status == 0, job.output
    ran = re.findall(r"\[rank (\d)\] ran (\S+?:\d+)", job.output)
    assert sorted(ran) == sorted((rank, place) for rank in "01" for place in blocks_of(kind)), job.output
