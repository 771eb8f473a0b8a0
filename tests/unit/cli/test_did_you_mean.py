"""Every command line says what was meant: over all commands of the tree, their options, and the choices of these."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from tests.brought import brought


def commands(
    command: click.Command = main, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands of the tree, with the words that call them."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*words, name))


TREE = list(commands())
GROUPS = [(words, command) for words, command in TREE if isinstance(command, click.Group)]
OPTIONS = [
    (words, option, spelled)
    for words, command in TREE
    for option in command.params
    if isinstance(option, click.Option)
    for spelled in (*option.opts, *option.secondary_opts)
    if spelled.startswith("--")
]
CHOICES = [
    (words, spelled, choice)
    for words, option, spelled in OPTIONS
    if isinstance(option.type, click.Choice)
    for choice in option.type.choices
]


def misspelled(word: str) -> str:
    """Two letters in the middle change places; where they are equal, one is missing."""
    middle = len(word) // 2
    swapped = word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]
    return swapped if swapped != word else word[:middle] + word[middle + 1 :]


def refused(*words: object) -> str:
    """Return what a command line that is refused says, as one line."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


def test_the_tree_is_all_of_it() -> None:
    assert {words for words, _ in TREE} >= {("plan", "check"), *brought("COMMANDS")}
    assert {" ".join(words) for words, _ in GROUPS} == {"", "bench", "plan", *brought("GROUPS")}
    assert len(OPTIONS) >= 10 + sum(brought("OPTIONS"))
    assert {spelled for _, spelled, _ in CHOICES} >= {*brought("CHOICES")}


@pytest.mark.parametrize(
    ("words", "name"),
    [(words, name) for words, command in GROUPS for name in command.list_commands(click.Context(command))],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_command(words: tuple[str, ...], name: str) -> None:
    wrong = misspelled(name)
    assert f"No such command {wrong!r}; known are " in (said := refused(*words, wrong))
    assert said.endswith(f"; did you mean {name}?")
    assert refused(*words, name.upper()).endswith(f"; did you mean {name}?")
    assert "did you mean" not in refused(*words, "xyzzy")


def test_every_option() -> None:
    for words, _, spelled in OPTIONS:
        said = refused(*words, f"--{misspelled(spelled.removeprefix('--'))}")
        assert "No such option" in said
        assert spelled in said.partition("Did you mean")[2], words


def test_every_choice() -> None:
    for words, spelled, choice in CHOICES:
        wrong = misspelled(choice)
        said = refused(*words, spelled, wrong)
        assert f"Invalid value for '{spelled}': {wrong!r} is not one of " in said, words
        assert said.endswith(f"; did you mean {choice}?"), words


CHOOSE = "choose --numel 1M --ratio 1% --world-size 4 --latency 1ms --bandwidth 1gbit --candidates"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (f"{CHOOSE} ring,allgater", "unknown path 'ring'"),
        (f"{CHOOSE} allgater", "did you mean allgather?"),
        (f"{CHOOSE} dense-rnig", "did you mean ring?"),
        (f"{CHOOSE} artopk-rign", "did you mean ring?"),
        (f"{CHOOSE} atropk-tree", "did you mean artopk-tree?"),
        (f"{CHOOSE} heirarchical", "did you mean hierarchical?"),
        *brought("MEANT"),
    ],
)
def test_what_options_name(line: str, meant: str) -> None:
    assert meant in refused(*shlex.split(line))
