"""Which room may see which: read from the import statements."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from hvd_compress import collectives, compressors
from hvd_compress.extras import PACKAGES
from hvd_compress.guests import GUESTS
from hvd_compress.request.request import PolicySettings
from tests.brought import brought
from tools.imports import imports_of

PACKAGE = Path(__file__).parents[2] / "hvd_compress"

ALLOWED = {
    "errors": set(),
    "checks": {"errors"},
    "guests": {"errors"},
    "warned": set(),
    "units": {"errors"},
    "schema": {"errors"},
    "profiler": {
        "profiler",
        "cost.curves",
        "cost.formulas",
        "engines.names",
        "errors",
        "guests",
        "papers.espresso",  # for type checkers alone
        "schema",
    },
    "frontends/optimizer/watchers": {"errors"},
    "frontends/gradient_hooks": {"frontends.eagerly"},
    "frontends/eagerly": set(),
    "frontends/optimizer/named_parameters": {"errors"},
    "settings": {"checks", "errors", "extras", "guests", "units"},
    "measuring": {"native"},
    "events": {"events", "buckets.layout", "engines.wire", "errors", "extras", "request", "collectives.phases"},
    "request": {
        "request",
        "compressors",
        "cost.paths",
        "engines.base",
        "engines.names",
        "errors",
        "feedback.schedule",
        "native.cuda",
        "collectives",
        "settings",
    },
    "payload": {"errors"},
    "extras": {"errors"},
    "native": {"native", "_native", "errors"},
    "feedback": {"buckets.layout", "errors", "feedback", "warned"},
    "buckets": {"buckets", "errors"},
    "devices": {"devices", "errors"},
    "cost": {"cost", "__version__", "engines.base", "engines.layout", "engines.names", "errors"},
    "compressors": {
        "buckets.layout",
        "compressors",
        "errors",
        "feedback.residual",
        "feedback.states",
        "guests",
        "native",
        "payload",
        "papers.family",  # for type checkers alone
    },
    "engines": {"engines", "errors", "extras", "native.links"},
    "membership": {"membership", "engines.arrivals", "engines.dialing", "engines.sockets", "errors"},
    "runtime": {"runtime", "engines", "errors", "membership.member", "settings", "warned"},
    "collectives": {
        "guests",
        "collectives",
        "buckets.layout",
        "compressors.base",
        "compressors.cast",
        "compressors.draws",
        "compressors.finite",
        "compressors.sparsifier",
        "compressors.summed",
        "cost.formulas",
        "cost.paths",
        "devices.lane",
        "engines.base",
        "engines.layout",
        "engines.names",
        "feedback.residual",
        "feedback.states",
        "payload",
        "errors",
        "native",
    },
    "services": {
        "buckets.layout",
        "services",
        "engines.base",
        "engines.launch",
        "events.history",
        "feedback.states",
        "collectives.phases",
        "collectives.probe",
    },
    "policies": {
        "policies",
        "services",
        "buckets.layout",
        "buckets.plan",
        "compressors",
        "cost",
        "request",
        "engines.base",
        "engines.launch",
        "engines.limits",
        "engines.names",
        "errors",
        "events",
        "extras",
        "feedback.schedule",
        "feedback.states",
        "schema",
        "collectives",
        "settings",
    },
    "optim": {"optim", "compression", "errors", "request"},
    "session": {
        "session",
        "__version__",
        "measuring",
        "buckets",
        "compressors",
        "cost",
        "request",
        "devices",
        "engines",
        "errors",
        "events",
        "feedback",
        "native",
        "policies",
        "services",
        "collectives",
        "settings",
        "warned",
    },
    **dict(brought("ALLOWED")),
}
"""What the modules of a room may import of this package."""

FRONT = {"__init__", "cli", "compression", "ddp", "elastic", "frontends", "fsdp", "integrations", "local", "torch"}
"""Front ends, and what users call: they see everything."""

GUEST_ROOMS = {guest.folder.partition("/")[0] for guest in GUESTS}
"""What they see, their tests bring; tests/unit/test_guests.py holds that nothing sees them."""

FRAMEWORKS = {
    "horovod": {"torch.py", "frontends/horovod", "engines/horovod.py", "engines/select.py", "cli"},
    "mpi4py": {"engines", "cli"},
    "transformers": {"attention/transformers_api.py", "integrations/transformers.py"},
    "accelerate": {"integrations/accelerate.py"},
    "lightning": {"integrations/lightning.py"},
    "pytorch_lightning": {"integrations/lightning.py"},
    "torchft": {"integrations/torchft.py"},
}
"""Adapters: the only places that know these packages."""


@cache
def imports(path: Path, typing: bool = True) -> tuple[str, ...]:
    """Modules that a file imports, also within functions, and for type checkers."""
    return tuple(imported(ast.parse(path.read_text()), typing))


def imported(tree: ast.AST, typing: bool = True) -> list[str]:
    """Modules, each by its own name also where it is imported from its folder."""
    found = []
    for module, name, _ in imports_of(tree, typing=typing):
        inner = f"{module}.{name}"
        is_module = module == PACKAGE.name or PACKAGE.parent.joinpath(*inner.split(".")).with_suffix(".py").is_file()
        found.append(inner if name and is_module else module)
    return found


def files(room: str) -> list[Path]:
    single = PACKAGE / f"{room}.py"
    return [single] if single.exists() else sorted((PACKAGE / room).rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rows_of_rooms() -> dict[str, int]:
    """Return the rooms of docs/design.md, each with the number of its row."""
    text = (PACKAGE.parent / "docs" / "design.md").read_text()
    table = text.partition("\n## The rooms\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    names = [(n, name) for n, row in enumerate(rows) for name in re.findall(r"`(?:hvd_compress/)?([\w/]+)", row)]
    return {name.rstrip("/"): n for n, name in names}


def test_rooms_stand_on_those_below_and_in_no_circle() -> None:
    """As docs/design.md lists them. Imports within functions count, and not those for type checkers."""
    below: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        modules = imports(path, typing=False)
        seen = {module.split(".")[1] for module in modules if module.startswith("hvd_compress.")}
        below.setdefault(room_of(path), set()).update(seen - {room_of(path)})
    del below["__init__"]  # the package itself, which has the names that users import
    list(TopologicalSorter(below).static_order())  # raises CycleError, which names the circle
    row = rows_of_rooms()
    for room in below.keys() & row.keys() - GUEST_ROOMS:
        assert not {seen for seen in below[room] & row.keys() if row[seen] < row[room]}, room


def test_every_room_is_named() -> None:
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")}
    assert rooms == {*FRONT, *GUEST_ROOMS, *(room for room in ALLOWED if "/" not in room)}


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_sees_what_it_may(room: str) -> None:
    assert files(room)
    may = ALLOWED[room] | ({"checks"} if "errors" in ALLOWED[room] else set())  # which raise what is there
    for path in files(room):
        for module in imports(path):
            if module.startswith("hvd_compress."):
                seen = module.removeprefix("hvd_compress.")
                allowed = any(seen == name or seen.startswith(name + ".") for name in may)
                assert allowed, f"{path.relative_to(PACKAGE)} imports {module}"


def test_the_compiled_module_is_known_to_native_alone() -> None:
    """By whatever way it is imported."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent != PACKAGE / "native":
            assert "hvd_compress._native" not in path.read_text(), path


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_are_known_to_their_adapters_alone(framework: str) -> None:
    users = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if any(module.split(".")[0] == framework for module in imports(path))
    ]
    assert users
    for user in users:
        assert any(user == place or user.startswith(place + "/") for place in FRAMEWORKS[framework]), user


CHECKED_BEFORE = (
    "torch.py",
    "frontends/horovod/",
    "engines/horovod.py",
    "engines/select.py",
    "cli/trials.py",
)
"""The drop-in and the constructor of HorovodEngine have imported Horovod; the doctor wants Python's own words."""


def test_a_missing_optional_package_is_one_error() -> None:
    """Its import stands in a block `with needed(...)`, which names the extra."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.relative_to(PACKAGE).as_posix().startswith(CHECKED_BEFORE):
            tree = ast.parse(path.read_text())
            for block in [node for node in ast.walk(tree) if isinstance(node, ast.With)]:
                if "needed(" in ast.unparse(block.items[0]):
                    block.body = [ast.Pass()]
            left = {name.split(".")[0] for name in imported(tree)} & PACKAGES.keys()
            assert not left, f"{path.relative_to(PACKAGE)} imports {left} outside of `with needed(...)`"


ASKED = {
    "hvd_compress.policies.auto.quality": {"compression/choosing.py"},
}
"""Who may know what of a policy beside policies/: what a user asks for."""


def test_what_policies_do_is_known_to_policies_alone() -> None:
    for path in modules("policies/"):
        for module in imports(path):
            if module.startswith("hvd_compress.policies.auto"):
                assert path.relative_to(PACKAGE).as_posix() in ASKED.get(module, set()), (path, module)


def test_no_policy_is_told_by_its_class() -> None:
    """Nor by that of its settings, outside of what makes it: all are asked the same."""
    settings = {each.__name__ for each in PolicySettings.__subclasses__()}
    assert "Auto" in settings
    for path in modules("policies/select.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                named = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not any(name.endswith("Policy") or name in settings for name in named), f"{path}:{node.lineno}"


def test_what_lies_below_a_front_end_knows_no_modules() -> None:
    """Nor optimizers: a session takes tensors."""
    fronts = (
        "frontends/",
        "torch.py",
        "ddp.py",
        "integrations/",
        "optim/",
        "embedding/",
        "attention/",
        "papers/",
        "cli/trials.py",
    )
    for path in modules(*fronts):
        text = path.read_text()
        assert "torch.nn" not in text, path
        assert "torch.optim" not in text.replace("neither Horovod nor torch.optim", ""), path


def test_what_chooses_while_training_and_the_planner_do_not_know_each_other() -> None:
    for path in sorted((PACKAGE / "policies").rglob("*.py")):
        assert not any(module.startswith("hvd_compress.papers.espresso") for module in imports(path))


COMPRESSORS = set(compressors.__all__) - {"COMPRESSORS", "Compressor", "Input", "Round", "Rounds"}
"""But their base: whether something is a compressor at all may be asked."""
COLLECTIVE_NAMES = set(collectives.labels()) - {"allreduce", "alltoall", "allgather"}
"""But those that are collectives, too."""


def modules(*without: str) -> list[Path]:
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.relative_to(PACKAGE).as_posix().startswith(tuple(without))
    ]


def test_no_compressor_is_told_by_its_class() -> None:
    """Outside of compressors/ and collectives they are told by what they promise."""
    for path in modules("compressors/", "collectives/", "papers/espresso/"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                named = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not named & COMPRESSORS, f"{path}:{node.lineno}"


def test_no_collective_is_told_by_its_name() -> None:
    """Outside of collectives/."""
    for path in modules("collectives/"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                named = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
                assert not named & COLLECTIVE_NAMES, f"{path}:{node.lineno}"
