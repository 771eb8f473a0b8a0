"""hvd_compress.torch is horovod.torch and more."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings

import pytest
import torch

import hvd_compress.torch as hvd
from hvd_compress.compression import Compression
from hvd_compress.compressors import TopK
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.frontends.horovod import distributed as optimizer_module
from hvd_compress.runtime import api
from tests.brought import brought

stock = pytest.importorskip("horovod.torch", reason="what it has is compared")

FUNCTIONS = {
    "DistributedOptimizer",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init",
    "synchronize",
}
OURS = {"Compression", *FUNCTIONS}


def public(module: object) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_")}


def test_everything_public_in_horovod_is_here() -> None:
    assert public(stock) <= public(hvd)
    assert public(stock) <= set(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)


def test_what_we_do_not_replace_is_horovods_own() -> None:
    """Modules aside: ours of the same names hide some of Horovod's."""
    others = {name for name in public(stock) - OURS if not inspect.ismodule(getattr(stock, name))}
    assert {name for name in others if getattr(hvd, name) is not getattr(stock, name)} == set()


def test_what_stands_for_horovod_has_all_of_it() -> None:
    beside = {"DistributedOptimizer", "SyncBatchNorm", "broadcast_optimizer_state", "broadcast_parameters"}
    of_horovod = {name for name in public(stock) if not inspect.ismodule(getattr(stock, name))}
    assert of_horovod - {"check_extension"} == set(api.__all__) - {"is_homogeneous"} | beside


@pytest.mark.parametrize("name", sorted(set(api.__all__) & public(stock)))
def test_what_stands_for_horovod_is_called_as_it(name: str) -> None:
    """By position and by name, with the same defaults; of some Horovod hides the arguments, or we do."""
    theirs, ours = getattr(stock, name), getattr(api, name)
    if not inspect.isfunction(theirs):
        assert isinstance(ours, type) == isinstance(theirs, type)
        return
    shown = [list(inspect.signature(each).parameters.values()) for each in (theirs, ours)]
    if any(parameter.kind == parameter.VAR_POSITIONAL for each in shown for parameter in each):
        return
    assert [(p.name, p.kind) for p in shown[0]] == [(p.name, p.kind) for p in shown[1]]
    for one, other in zip(*shown, strict=True):
        assert one.default == other.default or one.name in ("compression", "process_set"), one.name


def test_a_star_import_brings_ours() -> None:
    namespace: dict[str, object] = {}
    exec("from hvd_compress.torch import *", namespace)
    assert all(namespace[name] is getattr(hvd, name) for name in public(stock))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_signatures_are_horovods(name: str) -> None:
    """Names, order, defaults and kinds; annotations are ours."""

    def shape(function: object) -> list[tuple[object, ...]]:
        parameters = inspect.signature(function).parameters.values()
        return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]

    assert shape(getattr(hvd, name)) == shape(getattr(stock, name))


def test_compression_has_horovods_members_and_more() -> None:
    assert hvd.Compression.none is stock.Compression.none
    assert hvd.Compression.fp16 is stock.Compression.fp16
    assert issubclass(hvd.Compression, stock.Compression)
    assert public(hvd.Compression) - public(stock.Compression) == public(Compression)


@pytest.mark.parametrize("compression", ["topk", 0.01, None, TopK, TopK(0.01)])
def test_what_is_no_compression_is_refused_at_once(compression: object) -> None:
    """Horovod would fail in the first backward, or train in silence with one rank."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"is no compression: pass one such as Compression\.topk"):
        hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)


def test_an_optimizer_before_init_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "is_initialized", lambda: False)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"hvd\.init\(\) comes first"):
        hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=hvd.Compression.topk(0.1))


@pytest.mark.parametrize("name", ["topk", *brought("OF_RATIOS")])
def test_one_is_not_one_per_cent(name: str) -> None:
    with pytest.warns(UserWarning, match=r"one per cent is 0\.01") as warned:
        getattr(hvd.Compression, name)(1)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(("started", "sees", "told"), [("4", 1, True), ("4", 4, False), ("1", 1, False)])
def test_processes_of_which_each_is_alone_are_told(
    started: str, sees: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a launcher of another MPI starts them."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", started)
    monkeypatch.setattr(stock, "size", lambda: sees)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer_module._warn_if_alone()
    assert ["each trains by itself" in str(warning.message) for warning in caught] == [True] * told


def run(program: str) -> str:
    """Run a program in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SHOW = f"""
import horovod.torch as hvd
from horovod.torch import functions, mpi_ops, optimizer
from horovod.torch.elastic import state
for module in hvd, functions, mpi_ops, optimizer, hvd.compression, state:
    found = sorted(name for name in {OURS} if getattr(vars(module).get(name), "__module__", "").startswith("hvd_comp"))
    print(module.__name__, *found, end=";")
"""
SUBMODULES = {
    "functions": ["broadcast_", "broadcast_async_", "broadcast_optimizer_state", "broadcast_parameters", "synchronize"],
    "mpi_ops": ["Compression", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "init", "synchronize"],
    "optimizer": ["Compression", "DistributedOptimizer", "synchronize"],
    "compression": ["Compression"],
    "elastic.state": ["broadcast_optimizer_state", "broadcast_parameters"],
}


@pytest.mark.level2
def test_importing_patches_nothing_and_patching_twice_replaces_names() -> None:
    patch = "hvd_compress.patch_horovod()\nhvd_compress.patch_horovod()"
    printed = run(f"import hvd_compress, hvd_compress.torch\n{SHOW}\n{patch}\nprint('then')\n{SHOW}")
    before, after = printed.split("then")
    names = ["horovod.torch", *(f"horovod.torch.{name}" for name in SUBMODULES)]
    assert [line.split() for line in before.split(";")[:-1]] == [[name] for name in names]
    found = [line.split() for line in after.split(";")[:-1]]
    assert found == [[name, *ours] for name, ours in zip(names, [sorted(OURS), *SUBMODULES.values()], strict=True)]


@pytest.mark.level1
def test_importing_the_package_imports_neither_torch_nor_horovod() -> None:
    assert run("import hvd_compress, sys; print({'torch', 'horovod', 'mpi4py'} & set(sys.modules))") == "set()"


@pytest.mark.level2
def test_stock_compression_still_works_when_patched() -> None:
    """The patched function must call Horovod's, not itself."""
    program = """
import hvd_compress
from tests.brought import brought
hvd_compress.patch_horovod()
import horovod.torch as hvd, torch
hvd.init()
from horovod.torch.functions import broadcast_optimizer_state, broadcast_parameters
from horovod.torch.mpi_ops import allreduce_async_, broadcast, broadcast_async_, synchronize
from horovod.torch.optimizer import DistributedOptimizer
parameter = torch.nn.Parameter(torch.ones(3))
broadcast_parameters({"p": parameter, "turned": torch.ones(2, 3).t(), "mask": torch.ones(2) > 0}, 0)
assert synchronize(broadcast_async_(parameter, 0)) is synchronize(allreduce_async_(parameter)) is parameter
broadcast(parameter * 1, 0).sum().backward()
assert parameter.grad.tolist() == [1.0] * 3
optimizer = DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)])
broadcast_optimizer_state(optimizer, 0)
optimizer.zero_grad()
parameter.sum().backward()
optimizer.step()
print(parameter.tolist(), hasattr(optimizer, "_reducer"))
"""
    assert run(program) == "[0.0, 0.0, 0.0] False"
