"""The blocks of Python in README and docs/, and what each runs with; sybil finds them.

A comment before a block says of what kind it is, and those behind it, until the next comment:

    <!-- test: ddp -->           on two ranks, with new names: a model, an optimizer, batches; and a process group
    <!-- test: horovod -->       the same, with hvd, and a distributed optimizer
    <!-- test: lab -->           in one process, which may make a network lab; no names
    <!-- test: lightning -->     on two ranks, in that library's test (also accelerate, transformers), with its names
    <!-- test: no, REASON -->    it cannot run here: it is compiled, and what it imports must have what it uses

At the beginning of a page blocks are `plain`: in one process, no names. Blocks of one page share their names; so does
an invisible block, with what a reader has already:

    <!-- invisible-code: python
    model.backbone = model[0]
    -->

`...` on a line of its own, and `train()` in an invisible block, are a step of training with the names as they are then:
model, optimizer, images and labels.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LIBRARIES = ("lightning", "accelerate", "transformers")
KINDS = {"ddp": "torchrun", "horovod": "mpirun", "plain": "", "lab": "", **dict.fromkeys(LIBRARIES, ""), "no": ""}
"""And what launches the job of two ranks in which the blocks of a kind run, all in one."""

_STEP = re.compile(r"^( *)\.\.\.$", re.MULTILINE)
Begin = Callable[[dict[str, Any]], None]
Before = Callable[[str], None]


class Page:
    """A page, with the names that its blocks share."""

    def __init__(self, path: Path) -> None:
        self._path = path
        blocks = CodeBlockParser("python", PythonEvaluator())
        self._document = Document.parse(str(path), _directives, blocks, encoding="utf-8")

    def places(self, kind: str) -> list[str]:
        """Return where the blocks of a kind begin, as PAGE:LINE; invisible ones are no blocks."""
        return [self._place(each) for each in self._of(kind) if each is not None and self._is_visible(each)]

    def run(self, kind: str, begin: Begin = lambda names: None, before: Before = lambda source: None) -> None:
        """Run the blocks of a kind.

        Args:
            kind: one of KINDS.
            begin: makes the names of the kind anew.
            before: is called with the source of each block that is about to run.
        """
        for example in self._of(kind):
            if example is None:
                begin(self._document.namespace)
            elif kind == "no":
                check(example.parsed)
            else:
                example.parsed = _filled(example.parsed)
                before(example.parsed)
                example.evaluate()

    def _of(self, wanted: str) -> Iterator[Example | None]:
        """Return the blocks of a kind, and None where a comment begins them."""
        kind = "plain"
        for example in self._document.examples():
            if example.region.evaluator is None:
                kind, _, reason = example.parsed.partition(", ")
                assert kind in KINDS, f"{self._place(example)}: {kind} is none of {', '.join(KINDS)}"
                assert bool(reason) == (kind == "no"), f"{self._place(example)}: say why it cannot run, or nothing"
                if kind == wanted:
                    yield None
            elif kind == wanted:
                yield example

    def _is_visible(self, example: Example) -> bool:
        return self._document.text[example.start : example.end].lstrip().startswith("```")

    def _place(self, example: Example) -> str:
        return f"{self._path.relative_to(ROOT)}:{example.line}"


def run_pages(kind: str, begin: Begin = lambda names: None) -> None:
    """Run the blocks of a kind on all pages; there must be some."""
    pages = [page for page in map(Page, PAGES) if page.places(kind)]
    assert pages, f"no block is of kind {kind}"
    for page in pages:
        page.run(kind, begin)


def all_blocks() -> list[str]:
    """Return where each block of Python begins, found by its fence alone."""
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in PAGES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.match(r" *`{3,}python\b", line)
    ]


def _directives(document: Document) -> Iterator[Region]:
    for region in DirectiveInHTMLCommentLexer("test", arguments=".+?")(document):
        yield Region(region.start, region.end, region.lexemes["arguments"].strip())


def _filled(source: Any) -> Any:
    """Return a source with a step of training in the place of `...`."""
    return type(source)(_STEP.sub(r"\1train()", source), source.offset, source.line_offset)


def check(source: str) -> None:
    """Compile a block, import what it imports, and look up what it uses of that, and by which keywords it calls it.

    Raises:
        ImportError, AttributeError, AssertionError: it uses what is not there.
    """
    tree = ast.parse(source)
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            exec(compile(ast.Module([node], []), "<block>", "exec"), names)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            _resolved(node, names)
        if isinstance(node, ast.Call) and callable(called := _resolved(node.func, names)):
            parameters = inspect.signature(called).parameters.values()
            known = {parameter.name for parameter in parameters}
            if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
                unknown = {keyword.arg for keyword in node.keywords} - known
                assert not unknown, f"{ast.unparse(node.func)} takes no {', '.join(map(str, unknown))}"


def _resolved(node: ast.AST, names: dict[str, Any]) -> Any:
    """Return what a dotted name that begins with an imported one stands for; None for others."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (of := _resolved(node.value, names)) is not None:
        return getattr(of, node.attr)
    return None
