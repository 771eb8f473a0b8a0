"""Checkpoints of earlier versions load to the bit, and training goes on as it did when they were written.

tests/checkpoints/make.py wrote them. The archives hold the gradients, which are whole numbers over 2^10, and settings
are powers of two. So results depend neither on the machine nor on the release of torch, unless a case has a tolerance.
"""

from __future__ import annotations

import json
import pickletools
import shutil
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed.fsdp

from hvd_compress.cost import store
from hvd_compress.cost.curves import Curves
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.guests import GUESTS
from hvd_compress.policies.plan_settings import compressor_of, settings_of
from tests.checkpoints import make
from tests.checkpoints.archive import NAMES, entries, unpack
from tests.checkpoints.cases import DROP_IN, RANKS
from tests.checkpoints.embeddings import Tables
from tests.checkpoints.formats import FORMS
from tests.checkpoints.runs import assert_results, assert_same, check, drop_in, gradients_in, launched, load, planned
from tests.checkpoints.training import CarriedDropIn
from tests.unit.frontends.ddp import job

HAS_FSDP = hasattr(getattr(torch.distributed.fsdp, "FSDPModule", None), "set_reduce_scatter_unused_params")
Unpacked = Callable[[str], Path]

of_each_archive = pytest.mark.parametrize("name", NAMES)


def each_of(kind: str) -> pytest.MarkDecorator:
    """Run a test with all that archives have in a folder, but for compressions of guests that are not here."""
    gone = {compression for guest in GUESTS if not guest.is_here for compression in guest.compressions}
    kept = [(name, each) for name in NAMES for each in entries(name, kind) if each.partition("-")[0] not in gone]
    return pytest.mark.parametrize(("name", "entry"), kept)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    """Return the folder of an archive's files, which no test changes."""

    @cache
    def folder_of(name: str) -> Path:
        folder = tmp_path_factory.mktemp("checkpoints")
        unpack(name, folder)
        return folder

    return folder_of


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path / "cache"))


def test_there_are_archives() -> None:
    assert NAMES


@each_of("drop-in")
def test_the_drop_in_optimizer(name: str, entry: str, unpacked: Unpacked, request: pytest.FixtureRequest) -> None:
    gradients, own = gradients_in(unpacked(name)), unpacked(name) / "drop-in" / entry
    clock = request.getfixturevalue("clock") if DROP_IN[entry].adapts else None
    run_ranks(RANKS, lambda engine: check(drop_in(entry, engine, clock, resumes=True), gradients, own))


@of_each_archive
def test_a_plain_optimizer_carries_it_to_the_drop_in(name: str, unpacked: Unpacked) -> None:
    gradients, own = gradients_in(unpacked(name)), unpacked(name) / "drop-in" / "int4"
    run_ranks(RANKS, lambda engine: check(CarriedDropIn(DROP_IN["int4"], engine), gradients, own))


@of_each_archive
def test_ddp_and_fsdp(name: str, unpacked: Unpacked, tmp_path: Path) -> None:
    """One job for all: a process takes longer to begin than its checks."""
    folder = unpacked(name)
    kinds = ("ddp", *(["fsdp"] if HAS_FSDP else []), "forms")
    cases = [(kind, entry) for kind in kinds for entry in entries(name, kind)]
    imports = ["tests.checkpoints.formats", *(["hvd_compress.fsdp"] if HAS_FSDP else [])]
    cache = str(tmp_path)
    job.run_ranks(check_launched, folder, cases, ranks=RANKS, imports=imports, HVD_COMPRESS_CACHE=cache)


def check_launched(rank: int, folder: Path, cases: list[tuple[str, str]]) -> None:
    gradients = gradients_in(folder)
    for kind, entry in cases:
        own = folder / kind / entry
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                if kind == "forms":
                    FORMS[entry].check(rank, gradients, own)
                else:
                    check(launched(kind, entry, rank), gradients, own)
        except BaseException as error:
            raise AssertionError(f"{kind}/{entry}") from error


@of_each_archive
def test_other_residuals_give_other_results(name: str, unpacked: Unpacked, tmp_path: Path) -> None:
    """So the tests above would notice if some were lost."""
    saved_in = unpacked(name) / "drop-in" / "int4"
    gradients = gradients_in(unpacked(name))
    shutil.copytree(saved_in, tmp_path, dirs_exist_ok=True)
    for rank in range(RANKS):
        saved = load(saved_in / f"rank{rank}.pt")
        (own,) = saved["optimizer"]["hvd_compress"]["ranks"].values()
        own["residuals"]["first.bias"][3] += 1.0
        torch.save(saved, tmp_path / f"rank{rank}.pt")

    def body(engine: InProcessEngine) -> None:
        with pytest.raises(AssertionError, match="results: other bits"):
            check(drop_in("int4", engine), gradients, tmp_path)

    run_ranks(RANKS, body)


@of_each_archive
def test_an_embedding(name: str, unpacked: Unpacked) -> None:
    folder = unpacked(name) / "embedding"

    def body(engine: InProcessEngine) -> None:
        saved = load(folder / f"rank{engine.rank}.pt")
        loaded, after = Tables(engine).resumed(saved)
        assert_same(loaded, saved)
        assert_same(after, load(folder / f"after{engine.rank}.pt"))

    run_ranks(RANKS, body)


@of_each_archive
def test_the_journal_of_an_embedding(name: str, unpacked: Unpacked, tmp_path: Path) -> None:
    folder = unpacked(name) / "embedding"
    shutil.copytree(folder / "journal", tmp_path, dirs_exist_ok=True)

    def body(engine: InProcessEngine) -> None:
        after = Tables(engine, tmp_path).restored()
        assert_same(after, load(folder / f"after{engine.rank}.pt"))

    run_ranks(RANKS, body)


@each_of("plans")
def test_a_plan(name: str, entry: str, unpacked: Unpacked) -> None:
    """It sends what the training did that wrote it."""
    folder, gradients = unpacked(name) / "plans" / entry, gradients_in(unpacked(name))
    for found in run_ranks(RANKS, lambda engine: planned(folder / "plan.json", engine, gradients)):
        assert_results(found, load(folder / "results.pt"), DROP_IN[entry].tolerance)


def says(found: object, said: object) -> bool:
    """Whether what was found has all that a file says; a field that is newer may be there."""
    if isinstance(found, dict) and isinstance(said, dict):
        return all(key in found and says(found[key], value) for key, value in said.items())
    return found == said


@of_each_archive
def test_the_settings_of_each_compressor_in_a_plan(name: str, unpacked: Unpacked) -> None:
    for label, settings in json.loads((unpacked(name) / "compressors.json").read_text()).items():
        assert says(settings_of(compressor_of(settings)), settings), label


@each_of("curves")
def test_curves_of_a_network(name: str, entry: str, unpacked: Unpacked) -> None:
    """A file of another version is ignored, so the version here is the one in the file."""
    path = unpacked(name) / "curves" / entry
    content = json.loads(path.read_text())
    shape = store.JobShape(**{**content["shape"], "hosts": tuple(content["shape"]["hosts"])})
    assert shape.file_name() == entry
    (state,) = content["states"]
    saved = Curves.from_json(RANKS, state["curves"])
    for (found,) in run_ranks(RANKS, lambda engine: store.load(engine, shape, list(saved.by_key), path.parent)):
        assert found == saved
        assert found.to_json() == state["curves"]


@of_each_archive
def test_files_hold_no_class_of_the_package(name: str, unpacked: Unpacked) -> None:
    """Otherwise a renamed class would make them unreadable, and torch.load() would refuse them by default."""
    files = [path for path in unpacked(name).rglob("*") if path.is_file() and zipfile.is_zipfile(path)]
    assert len(files) > 100
    for path in files:
        load(path)
        with zipfile.ZipFile(path) as archive:
            (pickled,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
            named = classes_in(archive.read(pickled))
        assert not [each for each in named if not each.startswith(("torch", "collections "))], path


@of_each_archive
def test_classes_in_the_pickled_state_of_a_hook_are_where_they_were(name: str, unpacked: Unpacked) -> None:
    """It is pickled as a whole, so each class of the package that it holds must stay importable by its earlier name."""
    for path in unpacked(name).rglob("*.pickle"):
        named = [each.split() for each in classes_in(path.read_bytes()) if each.startswith("hvd_compress")]
        assert named
        for module, label in named:
            assert hasattr(import_module(module), label), f"{module}.{label}"


@pytest.mark.level2
@pytest.mark.skipif(not HAS_FSDP, reason="FSDP2 of this torch takes no custom collectives")
def test_another_archive_can_be_written(tmp_path: Path) -> None:
    make.write(tmp_path)
    for kind in ("drop-in", "ddp", "fsdp", "forms", "plans", "embedding", "curves"):
        written = {path.name for path in (tmp_path / kind).iterdir()}
        for name in NAMES:
            assert written >= set(entries(name, kind))


def classes_in(pickled: bytes) -> set[str]:
    """Return "module name" of all that a pickle imports."""
    found, texts = set[str](), list[str]()
    for code, argument, _ in pickletools.genops(pickled):
        if code.name == "GLOBAL":
            found.add(str(argument))
        elif code.name == "STACK_GLOBAL":
            found.add(" ".join(texts[-2:]))
        elif isinstance(argument, str):
            texts.append(argument)
    return found
