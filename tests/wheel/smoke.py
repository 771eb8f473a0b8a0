"""Does an installed wheel work where there is torch, and neither Horovod nor MPI? Run by tools/build_wheel.py.

Not a test of pytest's: the environment holds nothing but the wheel and what it names.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, STEPS, NUMEL, RATIO = 2, 30, 10_000, 0.01
OPTIONAL = ("horovod", "mpi4py", "matplotlib", "pymoo", "tensorboard", "cloudpickle", "psutil", "yaml", "sklearn")
MODULES = (
    "frontends.optimizer.reducer", "frontends.optimizer.optimizer", "request.decision", "compressors", "collectives",
    "engines.torch_distributed", "engines.inprocess", "cost", "cost.predict", "policies", "policies.auto.policy",
    "events.timeline", "attention.cli.chai", "netlab.cli.netlab", "session.session",
    *(f"papers.espresso.cli.{name}" for name in ("make", "compare", "planner", "options", "count_options", "probe")),
    "papers.utility.cli.whatif", "papers.accordion.compressions", "policies", "compression", "ddp",
    *(f"cli.{name}" for name in ("main", "bench", "choose", "doctor", "plan")), "report.cli.report",
)  # fmt: skip
BEFORE = """
import os
import torch

torch.manual_seed(int(os.environ["RANK"]))  # broadcasts make models alike
model = torch.nn.Linear(20, 10)
batches = [(torch.randn(8, 20), torch.randint(10, (8,))) for _ in range(30)]
"""
IN_THE_LOOP = """
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
print(model.weight.double().sum().item())
"""


def main() -> None:
    for check in (imports, kernels, exchange_of_threads, training_with_ddp, drop_in, commands, missing_extras):
        check()
        print(f"{check.__name__}: ok", flush=True)


def imports() -> None:
    there = [name for name in OPTIONAL if find_spec(name)]
    assert not there, f"not a fresh environment: {', '.join(there)}"
    package = importlib.import_module("hvd_compress")
    folder = Path(package.__file__ or "").parent
    assert folder.is_relative_to(sys.prefix), f"imported from {folder}"
    assert version("hvd_compress") == package.__version__
    for name in MODULES:
        importlib.import_module(f"hvd_compress.{name}")
    assert os.access(folder / "netlab" / "netlab_relay", os.X_OK)
    subprocess.run([folder / "netlab" / "netlab_relay"], capture_output=True, timeout=60, check=False)  # it can start


def kernels() -> None:
    """Top-k and signs there and back, with the native kernels, by the widest vectors that there are."""
    from hvd_compress import native
    from hvd_compress.buckets.layout import Layout
    from hvd_compress.compressors import EFSign, TopK

    flags = set(Path("/proc/cpuinfo").read_text().split())
    assert (native.simd_levels()[-1] == "portable") == (not flags >= {"avx2", "f16c"}), native.simd_levels()
    layout = Layout.of(NUMEL)
    gradient = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    residual, pending = torch.zeros(NUMEL), torch.empty(NUMEL)
    for compressor in (TopK(RATIO), EFSign()):
        payload = compressor.compress_feedback(gradient, residual, pending, layout)
        transmitted = compressor.decompress(payload, layout)
        assert torch.allclose(transmitted + pending, gradient, atol=1e-5), compressor
    kept = TopK(RATIO).decompress(TopK(RATIO).compress(gradient, layout), layout)
    assert set(kept.nonzero()[:, 0].tolist()) == set(gradient.abs().topk(int(RATIO * NUMEL)).indices.tolist())


def exchange_of_threads() -> None:
    """Ranks that are threads of this process."""
    from hvd_compress.engines.inprocess import InProcessEngine, run_ranks

    def reduce(engine: InProcessEngine) -> torch.Tensor:
        tensor = torch.full((NUMEL,), engine.rank + 1.0)
        engine.allreduce(tensor)
        return tensor

    for total in run_ranks(RANKS, reduce):
        assert (total == sum(range(1, RANKS + 1))).all()


def training_with_ddp() -> None:
    """Ranks that are processes, which compress the gradients of a regression, over gloo."""
    mp.spawn(train, (os.getcwd(),), nprocs=RANKS)


def train(rank: int, folder: str) -> None:
    from torch.nn.parallel import DistributedDataParallel

    import hvd_compress.ddp as hc

    os.environ["HVD_COMPRESS_ADAPT"] = "0"  # a plan can be saved at once
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    torch.manual_seed(0)  # the same model and the same task on all ranks
    module, truth = torch.nn.Linear(500, 10), torch.nn.Linear(500, 10)
    torch.manual_seed(rank + 1)
    model = DistributedDataParallel(module)
    hc.compress(model, hc.Compression.topk(0.1).by(collective="star"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(64, 500)
        optimizer.zero_grad()
        loss = (model(inputs) - truth(inputs).detach()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    report = hc.of(model).last_step
    assert report is not None
    assert 0 < report.sent_bytes < 0.2 * report.dense_bytes, report
    everywhere = [torch.empty_like(module.weight) for _ in range(RANKS)]
    dist.all_gather(everywhere, module.weight.detach())
    assert all((weight == everywhere[0]).all() for weight in everywhere), "the ranks disagree"
    if rank == 0:
        hc.of(model).save_plan("plan.json")
    dist.destroy_process_group()


def drop_in() -> None:
    """README's first lines, by torchrun."""
    readme = Path(__file__).parents[2].joinpath("README.md").read_text()
    block = readme.partition("<!-- test: horovod -->\n```python\n")[2].partition("```")[0]
    assert block.endswith("    ...\n"), "README's first lines end in a loop"
    Path("train.py").write_text(BEFORE + block.removesuffix("    ...\n") + IN_THE_LOOP)
    torchrun = Path(sys.executable).with_name("torchrun")
    line: Sequence[str | Path] = [torchrun, "--nproc-per-node", str(RANKS), "train.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split()
    assert len(answers) == RANKS, done.stdout
    assert len(set(answers)) == 1, f"the ranks disagree: {answers}"


def commands() -> None:
    assert "doctor" in command("--help")
    told = command("doctor")
    assert "Training can run." in told, told
    words = "".join(told.split())  # whatever the lines
    assert "Horovodisnotinstalled" in words, told
    assert "PyTorchDDPoverglooworks" in words, told
    flags = ["--numel", "25.6M", "--ratio", "1%", "--world-size", "8", "--latency", "1ms", "--bandwidth", "5gbit"]
    assert "fastest" in command("choose", *flags)
    assert "one bucket: bias and 1 more" in command("plan", "check", "plan.json")
    assert "topk" in command("bench", "kernels", "--size", "64K", "--kernel", "topk", "--repetitions", "1")


def missing_extras() -> None:
    from hvd_compress.errors import MissingPackageError

    told = "nothing"
    try:
        importlib.import_module("hvd_compress.engines.mpi")
    except MissingPackageError as error:
        told = str(error)
    assert "pip install 'hvd_compress[mpi]'" in told, told
    Path("log").write_text('{"step": 1, "kind": "choice"}')
    assert "pip install 'hvd_compress[plot]'" in command("report", "log", code=2)


def command(*words: str, code: int = 0) -> str:
    """Return what a command of ours prints, and require its exit code."""
    line: Sequence[str | Path] = [Path(sys.executable).with_name("hvd-compress"), *words]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
    assert done.returncode == code, f"hvd-compress {' '.join(words)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        os.environ["HVD_COMPRESS_CACHE"] = f"{empty}/cache"
        main()
        os.chdir("/")
