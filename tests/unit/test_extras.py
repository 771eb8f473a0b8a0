"""An optional package that is missing is one error, which names its extra; what needs none imports without any."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_compress
from hvd_compress.errors import ConfigError, MissingPackageError, located
from hvd_compress.extras import PACKAGES, needed, require
from tests.brought import brought

pytestmark = pytest.mark.level2

ROOT = Path(__file__).parents[2]
FOLDER = Path(hvd_compress.__file__).parent
MPI_MODULES = ("mpi", "mpi_algorithms", "mpi_arrivals", "mpi_hosts", "mpi_library", "mpi_shutdown", "control_variables")
NEEDING = (
    "hvd_compress.integrations.accelerate",
    "hvd_compress.integrations.transformers",
    "hvd_compress.integrations.lightning",
    "hvd_compress.integrations.torchft",
    *(f"hvd_compress.engines.{name}" for name in MPI_MODULES),
    *brought("NEEDING"),
)
"""What needs mpi4py, accelerate, transformers, Lightning or torchft as soon as it is imported, with all in it."""
MODULES = [
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(FOLDER.rglob("*.py"))
]
WITHOUT_EXTRAS = [name for name in MODULES if not f"{name}.".startswith(tuple(f"{one}." for one in NEEDING))]

IMPORT = f"""
import importlib, os, sys
os.environ["HVD_COMPRESS_RUNTIME"] = "torch"  # else the drop-in imports Horovod where it is
for name in {WITHOUT_EXTRAS}:
    importlib.import_module(name)
print(sorted({set(PACKAGES)} & sys.modules.keys()))
"""

HIDE = """
import sys

class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hider())
"""
"""Hides packages as if they were not installed."""

USES = {
    "Horovod by name": (
        "horovod",
        "import os; os.environ['HVD_COMPRESS_RUNTIME'] = 'horovod'; import hvd_compress.torch",
    ),
    "Horovod's engine": ("horovod", "from hvd_compress.engines.horovod import HorovodEngine; HorovodEngine()"),
    **{name: ("mpi4py", f"import hvd_compress.engines.{name}") for name in MPI_MODULES},
    "scalars": ("tensorboard", "from hvd_compress.events.tensorboard import TensorBoard; TensorBoard('.')"),
    "Accelerate": ("accelerate", "import hvd_compress.integrations.accelerate"),
    "Trainer": ("transformers.trainer", "import hvd_compress.integrations.transformers"),
    "a callback of Lightning": (
        "lightning",
        "import sys; sys.modules['pytorch_lightning'] = None; import hvd_compress.integrations.lightning",
    ),
    **dict(brought("USES")),
    "digits": ("sklearn", "from examples.images.data import load_digits; load_digits()"),
}
"""For each use: the package that it needs, and statements."""

ONE_STEP = """
import torch
import hvd_compress.torch as hvd
from hvd_compress.frontends.horovod import runtime_selection
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(3, 4), hvd.SyncBatchNorm(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=hvd.Compression.fp16)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
assert hvd.allreduce(torch.ones(2)).tolist() == [1, 1] and hvd.rank() == 0 and hvd.size() == 1
hvd.shutdown()
print(f"{runtime_selection.RUNTIME}: {runtime_selection.WHY}")
"""

TELL = """
import json
told = {}
for use, (_, statements) in USES.items():
    try:
        exec(statements, {})
    except Exception as error:
        told[use] = [type(error).__name__, str(error)]
print(json.dumps(told))
"""


def run_without(hidden: set[str], program: str) -> str:
    command = [sys.executable, "-c", f"HIDDEN = {hidden}\n{HIDE}\n{program}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def told() -> dict[str, list[str]]:
    """For each use, the error where no optional package is there: its type and its words."""
    told: dict[str, list[str]] = json.loads(run_without(set(PACKAGES), f"USES = {USES}\n{TELL}"))
    return told


def test_what_a_front_end_without_horovod_uses_is_among_them() -> None:
    names = (
        "frontends.optimizer.reducer",
        "frontends.optimizer.optimizer",
        "request.decision",
        "compressors",
        "collectives",
        "engines.torch_distributed",
        "engines.inprocess",
        "cost",
        "session.session",
        "policies",
        "compression",
        "ddp",
        "engines.select",
        "cli.plan",
    )
    assert {f"hvd_compress.{name}" for name in (*names, "policies", "cli.main")} <= set(WITHOUT_EXTRAS)


def test_what_needs_no_extra_imports_without_any() -> None:
    run_without({*PACKAGES, "psutil", "yaml", "scipy"}, IMPORT)


def test_what_needs_no_extra_imports_none_that_is_there() -> None:
    assert run_without(set(), IMPORT) == "[]\n"


@pytest.mark.parametrize("use", USES)
def test_what_needs_an_extra_names_it(told: dict[str, list[str]], use: str) -> None:
    package = PACKAGES[USES[use][0]]
    kind, words = told[use]
    assert kind == "MissingPackageError"
    assert words.startswith(f"{package.name} is missing, which ")
    assert f" needs: pip install 'hvd_compress[{package.extra}]'" in words
    assert "\n" not in words


def test_horovod_is_built_by_a_command(told: dict[str, list[str]]) -> None:
    for word in ("which hvd_compress.torch needs", "`python tools/install_horovod.py`", "`make setup`"):
        assert word in told["Horovod by name"][1]


def test_the_drop_in_stands_on_torch_where_horovod_is_not() -> None:
    """A step by one rank, with all that a script calls around it."""
    assert run_without({"horovod", "mpi4py", "cloudpickle"}, ONE_STEP) == "torch: Horovod is not installed\n"


def test_a_horovod_that_does_not_work_is_named() -> None:
    broken = HIDE.replace('ModuleNotFoundError(f"No module named {name!r}", name=name)', "ImportError('no libmpi')")
    command = [sys.executable, "-c", f"HIDDEN = {{'horovod'}}\n{broken}\n{ONE_STEP}"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout == "torch: Horovod is installed, and does not work: no libmpi\n"
    assert "Horovod is installed, and cannot be imported (ImportError: no libmpi)" in result.stderr
    assert "HVD_COMPRESS_RUNTIME=torch" in result.stderr
    assert result.stderr.startswith("<string>:"), "the line of the program"


def test_a_program_that_keeps_importing_horovod_gets_what_stands_for_it() -> None:
    program = """
import hvd_compress
hvd_compress.patch_horovod()
hvd_compress.patch_horovod()
import horovod.torch as hvd
from horovod.torch import DistributedOptimizer
from horovod.torch.mpi_ops import allreduce
from horovod.torch import mpi_ops
import hvd_compress.torch
print(hvd is hvd_compress.torch, DistributedOptimizer is hvd.DistributedOptimizer)
"""
    assert run_without({"horovod"}, program) == "True True\n"
    program = "import os, sys; os.environ['HVD_COMPRESS_RUNTIME'] = 'torch'; import horovod.torch\n" + program
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert "UsageError: horovod.torch was imported before patch_horovod()" in result.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(package, "this test")  # it is there
    monkeypatch.setitem(sys.modules, package, None)
    words = rf"^{PACKAGES[package].name} is missing, which this test needs: pip install 'hvd_compress\[\w+\]'"
    with pytest.raises(MissingPackageError, match=words), needed(package, "this test"):
        importlib.import_module(package)
    with pytest.raises(MissingPackageError, match=words):
        require(package, "this test")


def test_a_package_that_is_broken_says_why() -> None:
    words = r"^mpi4py cannot be imported \(RuntimeError: cannot load MPI library\), which this test needs: pip install"
    with pytest.raises(MissingPackageError, match=words) as caught, needed("mpi4py", "this test"):
        raise RuntimeError("cannot load MPI library")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_package_that_lacks_another_one_is_broken() -> None:
    words = "cannot be imported .*No module named 'scipy'.*, which this test needs: .*; or do without$"
    with pytest.raises(MissingPackageError, match=words), needed("pymoo", "this test", otherwise="do without"):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")


def test_the_error_is_one_of_ours_and_of_pythons() -> None:
    """It keeps its type where a place is added, and code that tries an import can catch it."""
    error = MissingPackageError("matplotlib is missing")
    assert isinstance(error, ConfigError)
    assert isinstance(error, ImportError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    with pytest.raises(MissingPackageError, match=r"^rank 1: matplotlib"), located("rank 1"):
        raise error
