"""Check the CUDA kernels on this machine's GPU: build, compare with the CPU twins, capture in graphs, run the
sanitizers, measure, and train with two ranks that share the GPU.

Needs nvcc, a torch that sees the GPU, and what builds the package (CMake, ninja, pybind11); it fetches nothing. With
the headers of CCCL 3.2 or later cub::DeviceTopK is measured, too: unpack the package nvidia-cuda-cccl, and pass the
folder that holds cub/ as --cccl, or carry it along as build/cccl. The exit status is 1 where a result differs from the
CPU's, a graph or a sanitizer finds a fault, or the training fails; a bound that is missed is only marked. The page goes
to --out, all figures as JSON to --raw.

python benchmarks/gpu/check.py [--parity-only] [--rounds N] [--largest N] [--cccl FOLDER] [--out FOLDER] [--raw FOLDER]
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from hvd_compress import native  # noqa: E402  (from this checkout)
from hvd_compress.native import cuda  # noqa: E402

Tensors = tuple[torch.Tensor, ...]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = (0, 1, 5, 63, 4095, 4096, 4097, 16_384, 70_001, 1_000_003)
NUMEL, RATIO, LISTS, REPETITIONS = 100_000_000, 0.01, 8, 50
QUEUE_NUMELS = (16_384, 65_536, 131_072, 262_144, 524_288)
"""Around kQueueMaxNumel of csrc/cuda/topk/launcher.cu: where its queue and its bracket should take equally long."""
QUEUE_KS = (64, 512, 2048)
BY_THRESHOLD = "threshold_select, threshold_accumulate"
SANITIZERS = ("memcheck", "racecheck", "initcheck")
NOT_YET = "not run"
BOUNDS_MS = {"topk_accumulate": 0.45, "sign_accumulate_kept": 0.36, "scatter_lists": 0.16, "gain_curve": 0.20}
"""What the kernels may take on an H200, 100 M elements."""
HEAD_START_CYCLES = 2_000_000
"""About a millisecond, in which the host launches what is measured: Python takes up to 0.1 ms for a call."""
TIMES_TORCH = 15
"""So much faster than torch's elementwise feedback, topk and scatter topk_accumulate has to be."""


@click.command(help=__doc__)
@click.option("--parity-only", is_flag=True, help="Neither build, nor sanitizers, nor measurements, nor training.")
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(min=1), help="Of random inputs.")
@click.option("--largest", default=SIZES[-1], show_default=True, type=int, help="Number of elements to compare.")
@click.option("--cccl", default=ROOT / "build" / "cccl", type=click.Path(path_type=Path), show_default=True)
@click.option("--out", default=ROOT / "benchmarks" / "results", type=click.Path(path_type=Path), show_default=True)
@click.option("--raw", default=ROOT / "build" / "gpu", type=click.Path(path_type=Path), show_default=True)
@click.option("--sanitizers/--no-sanitizers", default=True, show_default=True, help="They take longest, and come last.")
def main(parity_only: bool, rounds: int, largest: int, cccl: Path, out: Path, raw: Path, sanitizers: bool) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("torch sees no GPU here; run this on a machine that has one")
    if not parity_only:
        click.echo("building")
        subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=ROOT, check=True)
    device = torch.device("cuda")
    compared = parity(device, rounds, largest)
    click.echo(f"parity: {compared} results equal to the CPU's, bit by bit")
    if parity_only:
        return
    captured = graphs(device)
    click.echo(f"graphs: {captured} kernels captured and replayed, their results equal to those without")
    report: dict[str, object] = {
        "card": torch.cuda.get_device_name(), "torch": torch.__version__, "numel": NUMEL, "parity": compared,
        "graphs": captured, "sanitizers": dict.fromkeys(SANITIZERS, NOT_YET), "queue": [], "training": NOT_YET,
        "figures": measure(build_cub(cccl)),
    }  # fmt: skip
    write(report, out, raw)  # after each part, since a machine may be lent for a limited time
    report["queue"] = measure_queue()
    report["training"] = train()
    write(report, out, raw)
    for tool in SANITIZERS if sanitizers else ():
        report["sanitizers"] = {**_texts(report["sanitizers"]), tool: sanitize(tool)}
        write(report, out, raw)
    click.echo(write(report, out, raw).read_text())
    sys.exit(1 if faults(report) else 0)


def write(report: dict[str, object], out: Path, raw: Path) -> Path:
    """Write what is known so far as a page to `out` and as JSON to `raw`; return where the page is."""
    name = f"gpu-{str(report['card']).lower().replace(' ', '-')}"
    for folder in (out, raw):
        folder.mkdir(parents=True, exist_ok=True)
    (raw / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    written = out / f"{name}.md"
    written.write_text(page(report))
    return written


def _texts(value: object) -> dict[str, str]:
    assert isinstance(value, dict)
    return value


def faults(report: dict[str, object]) -> list[str]:
    """What makes the check fail, though it came to its end."""
    sanitized, training = report["sanitizers"], str(report["training"])
    assert isinstance(sanitized, dict)
    found = [f"{tool}: {said}" for tool, said in sanitized.items() if said.startswith("exit code")]
    return found + ([training] if "exit code" in training else [])


def parity(device: torch.device, rounds: int, largest: int = SIZES[-1]) -> int:
    """Compare every kernel on the device with the CPU's; return how many results were equal, or raise at the first
    that is not."""
    compared = 0
    for number in range(rounds):
        generator = torch.Generator().manual_seed(number)
        for n in (size for size in SIZES if size <= largest):
            grad_dtype = DTYPES[number % 3]
            residual_dtype = grad_dtype if number % 2 else torch.float32
            grad = _draw(number, n, generator).to(grad_dtype)
            residual = _draw(number + 1, n, generator).to(residual_dtype)
            k = int(torch.randint(0, n + 1, (), generator=generator))
            for name, call in _calls(k).items():
                expected = call(grad.clone(), residual.clone())
                found = call(grad.to(device, copy=True), residual.to(device, copy=True))
                native.check_pending()
                for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                    if not _same(ours.cpu(), theirs):
                        raise click.ClickException(
                            f"{name} differs in result {position}: seed {number}, n = {n}, k = {k}, {grad_dtype}, "
                            f"{residual_dtype}"
                        )
                    compared += 1
    return compared


def _draw(number: int, n: int, generator: torch.Generator) -> torch.Tensor:
    """Normal, heavy-tailed, with many ties, with what is not finite, all zero: in turn."""
    x = torch.randn(n, generator=generator)
    kinds: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: x, lambda: x**5, lambda: x.round(), lambda: torch.where(x > 2, torch.tensor(torch.nan), x),
        lambda: torch.zeros(n), lambda: x * 1e-39,
    )  # fmt: skip
    return kinds[number % len(kinds)]()


def _calls(k: int) -> dict[str, Callable[[torch.Tensor, torch.Tensor], Tensors]]:
    def lists(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        found = native.topk_accumulate(grad, residual, k)
        native.scatter_lists([found, found], residual, 0.3)
        cleared = torch.empty_like(residual)
        native.scatter_lists([found] * 3, cleared, 0.3, clear=True)
        return residual, cleared

    def at_indices(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        indices = native.topk(grad, k)[0]
        values, taken = native.gather(residual, indices), native.take(grad, indices)
        native.scatter_add(indices, taken, residual, -0.7)
        native.scatter_set(indices, values, grad, 0.3)
        return values, taken, grad, residual

    def code(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        indices = native.topk(grad, k)[0]
        words = native.elias_fano_encode(indices, grad.numel())
        return words, native.elias_fano_decode(words, grad.numel(), k)

    def signs(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        kept, kept_scale = residual.clone(), torch.zeros((), device=grad.device)
        bits, scale = native.sign_accumulate(grad, residual)
        for _ in range(2):
            found = native.sign_accumulate_kept(grad, kept, kept_scale)
            kept_scale = found[1]
        native.sign_add(bits, scale, grad, 0.3)
        return bits, scale, grad, residual, kept, *found

    def numbers(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        bits = (2, 4, 8)[k % 3]
        packed, norm = native.quantize_accumulate(
            grad, residual, bits, seed=k, step=3, bucket=5, norm=("l2", "max")[k % 2]
        )
        native.quantize_add(packed, norm, grad, bits, 0.3)
        return packed, norm, grad, residual

    def blocks(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        form = native.BlockFormat((8, 4, 2, 2)[k % 4], (64, 128, 1024)[k % 3], ("max", "ternary")[k % 4 == 3])
        key = native.RandomKey(k, 3, 5) if k % 2 else None
        kept = residual.float()
        sent = native.block_quantize(grad, kept, form, key=key)
        rest = torch.empty_like(kept)
        others = [sent] * (40 if k % 5 == 0 else 3)
        again = native.block_sum_quantize(residual, others, 1, form, key=key, rest=rest)
        finite = native.block_sum([sent, again, *others], grad, form, 0.3)
        return sent.codes, sent.units, kept, again.codes, again.units, rest, grad, _as_tensor(finite)

    def curve(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        found = native.gain_curve(grad)
        return found.counts, found.shares

    def by_threshold(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        kept, out = residual.float(), torch.empty_like(residual, dtype=torch.float32)
        momentum = native.Momentum(0.9, kept.roll(1), torch.empty_like(kept)) if k % 2 else None
        found = native.threshold_accumulate(grad, kept, 1.5, out, momentum)
        return *native.threshold_select(grad, 1.5), *found, out, kept if momentum is None else momentum.out

    return {
        "quantize": numbers,
        "block_quantize, block_sum, block_sum_quantize": blocks,
        "gain_curve": curve,
        BY_THRESHOLD: by_threshold,
        **{
            f"topk, {way}": functools.partial(_topk_by, way, k if way != "queue" else min(k, 2048))
            for way in cuda.TOPK_WAYS
        },
        "mstopk": lambda grad, residual: (
            *native.mstopk(grad, k, 1 + k % 48),
            *native.mstopk_accumulate(grad, residual, k, 1 + k % 48),
            residual,
        ),
        "accumulate": lambda grad, residual: (_as_tensor(native.accumulate(grad, residual)), residual),
        "scale": lambda grad, residual: (_as_tensor(native.scale(grad, 1 / 3)), grad),
        "sign": signs,
        "scatter_lists": lists,
        "gather, take, scatter_add, scatter_set": at_indices,
        "elias_fano_encode, elias_fano_decode": code,
    }


def _topk_by(way: str, k: int, grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
    with forced(grad.device, way):
        return (*native.topk(grad, k), *native.topk_accumulate(grad, residual, k), residual)


@contextmanager
def forced(device: torch.device, way: str) -> Iterator[None]:
    """Let a GPU do each top-k in one of its ways; the CPU has but one."""
    if device.type != "cuda":
        yield
        return
    cuda.kernels(device).force_topk(way)
    try:
        yield
    finally:
        cuda.kernels(device).force_topk("auto")


def _as_tensor(finite: bool | torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(finite, dtype=torch.int32)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the bit, the sign of zero included; a NaN only has to be a NaN."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(((a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())).all())


def graphs(device: torch.device) -> int:
    """Capture each kernel in a CUDA graph, change its inputs, replay it, and compare with a call without a graph.

    Returns how many there were. A kernel that made the host wait could not be captured.
    """
    n, k, done = 300_001, 3000, 0
    for name, call in _calls(k).items():
        if name == BY_THRESHOLD:
            continue  # how much it returns is up to the data
        for dtype in DTYPES:
            grad, residual = (torch.randn(n, device=device).to(dtype) for _ in range(2))
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                call(grad.clone(), residual.clone())
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = call(grad, residual)
            for _ in range(2):
                grad.copy_(torch.randn(n, device=device))
                residual.copy_(torch.randn(n, device=device))
                expected = call(grad.clone(), residual.clone())
                graph.replay()
                native.check_pending()
                for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                    if not _same(ours, theirs):
                        raise click.ClickException(f"{name} differs in result {position} of its graph, {dtype}")
            done += 1
    return done


def sanitize(tool: str) -> str:
    """Run the comparison under a tool of compute-sanitizer; return "clean" or what to read."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return "not run: no compute-sanitizer on PATH"
    click.echo(f"compute-sanitizer {tool}")
    # Without torch's cache each tensor is an allocation of its own, of which the tool sees the ends.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    tool_words = [program, "--tool", tool, "--error-exitcode", "9"]
    words = [*tool_words, sys.executable, __file__, "--parity-only", "--rounds=2", "--largest=70001"]
    return _outcome(words, environment, "clean")


def _outcome(words: list[str], environment: dict[str, str], good: str, timeout_s: int = 1800) -> str:
    """Run a command; return `good`, or its exit code and its last line."""
    try:
        result = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return f"exit code 124: no end after {timeout_s} s"
    if result.returncode == 0:
        return good
    click.echo(result.stdout[-4000:], err=True)
    return f"exit code {result.returncode}: {(result.stdout.strip().splitlines() or ['silent'])[-1]}"


def train() -> str:
    """Train with two ranks on the one GPU, over what there is and then through the example; return what ran."""
    click.echo("training with 2 ranks on one GPU, compared with the CPU")
    script = str(Path(__file__).with_name("training.py"))
    compared = _outcome([sys.executable, script], dict(os.environ), "equal to the CPU's, bit by bit")
    return compared if compared.startswith("exit code") else f"{compared}; the example: {train_example()}"


def train_example() -> str:
    """Return "ran", or why not."""
    example = str(ROOT / "examples" / "train_images.py")
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if mpirun is None:
        return "not run: no mpirun on PATH"
    known = subprocess.run([sys.executable, example, "--help"], stdout=subprocess.PIPE, text=True).stdout
    if "--device" not in known:
        return "not run: the example of this version trains on the CPU only (it has no --device)"
    words = [mpirun, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-np", "2", sys.executable, example]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return _outcome(
        [*words, "--device", "cuda", "--compression", "star", "--epochs", "1"], os.environ | root, "ran", 600
    )


Peer = Callable[[int], object]


@dataclass(frozen=True)
class Case:
    """A kernel on inputs that take turns, what does the same in torch, and the bytes an element that it cannot do
    without."""

    run: Peer
    torch: Peer
    bytes_each: float
    cub: Peer | None = None


def build_cub(headers: Path) -> ctypes.CDLL | None:
    """Compile benchmarks/gpu/cub_topk.cu with CCCL's headers; None where there are none."""
    if not (headers / "cub" / "device" / "device_topk.cuh").exists():
        click.echo(f"cub::DeviceTopK is not measured: {headers} holds no CCCL of 3.2 or later")
        return None
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    library = Path(tempfile.mkdtemp()) / "cub_topk.so"
    words = ["nvcc", "-std=c++17", "-O3", f"-arch=sm_{major}{minor}", "-shared", "-cudart", "static"]
    words += [
        "-Xcompiler",
        "-fPIC",
        "-I",
        str(headers),
        str(Path(__file__).with_name("cub_topk.cu")),
        "-o",
        str(library),
    ]
    subprocess.run(words, check=True)
    loaded = ctypes.CDLL(str(library))
    pointer = ctypes.c_void_p
    loaded.cub_topk.argtypes = [
        pointer, ctypes.c_longlong, ctypes.c_int, pointer, pointer, pointer, ctypes.POINTER(ctypes.c_size_t), pointer,
    ]  # fmt: skip
    return loaded


def _cub_topk(library: ctypes.CDLL, x: torch.Tensor, k: int) -> Callable[[], None]:
    """Return what selects with cub::DeviceTopK, in memory that is made here."""
    indices = torch.empty(k, dtype=torch.int32, device=x.device)
    magnitudes = torch.empty(k, device=x.device)
    size = ctypes.c_size_t()

    def call(workspace: int | None) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        arguments = (x.data_ptr(), x.numel(), k, indices.data_ptr(), magnitudes.data_ptr(), workspace)
        status = library.cub_topk(*arguments, ctypes.byref(size), stream)
        if status != 0:
            raise click.ClickException(f"cub::DeviceTopK says CUDA error {status}")

    call(None)
    workspace = torch.empty(size.value, dtype=torch.uint8, device=x.device)

    def select() -> None:
        call(workspace.data_ptr())

    select()
    expected = native.topk(x, k)[1].abs().sort().values
    if not torch.equal(magnitudes.sort().values, expected):
        raise click.ClickException("cub::DeviceTopK finds other magnitudes than native.topk")
    return select


def measure(cub: ctypes.CDLL | None) -> list[dict[str, object]]:
    """Medians over inputs that take turns, so that none is left in the cache, beside the floor and the peers."""
    copy_s, cases = _cases(cub)
    bandwidth = 8 * NUMEL / copy_s
    return [_figure(name, case, bandwidth) for name, case in cases.items()]


def _figure(name: str, case: Case, bandwidth: float) -> dict[str, object]:
    seconds, floor_s, torch_s = _seconds(case.run), case.bytes_each * NUMEL / bandwidth, _seconds(case.torch)
    bound_ms = BOUNDS_MS.get(name)
    return {
        "kernel": name,
        "ms": 1e3 * seconds,
        "floor_ms": 1e3 * floor_s,
        "times_floor": seconds / floor_s,
        "of_bandwidth": floor_s / seconds,
        "bound_ms": bound_ms,
        "within": (bound_ms is None or 1e3 * seconds <= bound_ms)
        and (name != "topk_accumulate" or torch_s >= TIMES_TORCH * seconds),
        "torch_ms": 1e3 * torch_s,
        "cub_ms": None if case.cub is None else 1e3 * _seconds(case.cub),
        "copy_tb_s": bandwidth / 1e12,
    }


def _cases(cub: ctypes.CDLL | None) -> tuple[float, dict[str, Case]]:
    """Return the seconds of a copy, and what to measure."""
    device = torch.device("cuda")
    grads = [torch.randn(NUMEL, device=device) for _ in range(2)]
    residuals = [torch.randn(NUMEL, device=device) for _ in range(2)]
    k = int(NUMEL * RATIO)
    lists = [native.topk(grads[0].roll(101 * rank), k) for rank in range(LISTS)]
    scale = torch.zeros((), device=device)
    select = [_cub_topk(cub, residual, k) for residual in residuals] if cub is not None else None

    def peer_topk(i: int) -> None:
        residuals[i] += grads[i]
        indices = residuals[i].abs().topk(k).indices
        values = residuals[i][indices]
        residuals[i][indices] = 0
        _ = values

    def cub_topk(i: int) -> None:
        residuals[i] += grads[i]
        assert select is not None
        select[i]()  # what it selects stays: the least that its user would do

    def peer_sign(i: int) -> None:
        residuals[i] += grads[i]
        mean = residuals[i].abs().mean()
        residuals[i] -= torch.where(residuals[i] < 0, -mean, mean)

    def peer_lists(i: int) -> None:
        residuals[i].zero_()
        for indices, values in lists:
            residuals[i].index_add_(0, indices, values, alpha=1 / LISTS)

    def forced_radix(i: int) -> None:
        with forced(device, "radix"):
            native.topk_accumulate(grads[i], residuals[i], k)

    def peer_blocks(i: int) -> None:
        residuals[i] += grads[i]
        rows = residuals[i].view(-1, form.block)
        units = rows.abs().amax(1, keepdim=True) / 7
        whole = (rows / units).round()
        rows -= whole * units
        _ = whole.to(torch.int8)

    form = native.BlockFormat(4)
    sent = [native.block_quantize(grads[0].roll(101 * rank), None, form) for rank in range(4)]
    each = form.nbytes(NUMEL) / NUMEL
    key = {"seed": 1, "step": 2, "bucket": 3}
    with_cub = cub_topk if cub is not None else None
    cases = {
        "topk_accumulate": Case(
            lambda i: native.topk_accumulate(grads[i], residuals[i], k), peer_topk, 12 + 8 * RATIO, with_cub
        ),
        "topk_accumulate, radix": Case(forced_radix, peer_topk, 12 + 8 * RATIO, with_cub),
        "sign_accumulate_kept": Case(
            lambda i: native.sign_accumulate_kept(grads[i], residuals[i], scale), peer_sign, 12.125
        ),
        "sign_accumulate": Case(lambda i: native.sign_accumulate(grads[i], residuals[i]), peer_sign, 12.125),
        "scatter_lists": Case(
            lambda i: native.scatter_lists(lists, residuals[i], 1 / LISTS, clear=True),
            peer_lists,
            4 + 8 * LISTS * RATIO,
        ),
        "gain_curve": Case(lambda i: native.gain_curve(grads[i]), lambda i: grads[i].abs().sort(), 4),
        "mstopk": Case(lambda i: native.mstopk(grads[i], k), lambda i: grads[i].abs().topk(k), 4),
        "mstopk_accumulate": Case(
            lambda i: native.mstopk_accumulate(grads[i], residuals[i], k), peer_topk, 12 + 8 * RATIO
        ),
        "quantize_accumulate, 8 bits": Case(
            lambda i: native.quantize_accumulate(grads[i], residuals[i], 8, **key),
            lambda i: residuals[i].add_(grads[i]).norm(),
            13,
        ),
        "block_quantize, 4 bits": Case(
            lambda i: native.block_quantize(grads[i], residuals[i], form), peer_blocks, 12 + each
        ),
        "block_quantize, 4 bits at random": Case(
            lambda i: native.block_quantize(grads[i], residuals[i], form, key=native.RandomKey(**key)),
            peer_blocks,
            12 + each,
        ),
        "block_sum of 4": Case(
            lambda i: native.block_sum(sent, residuals[i], form, 0.25), lambda i: residuals[i].mul_(0.25), 4 + 4 * each
        ),
        "block_sum_quantize, 3 others": Case(
            lambda i: native.block_sum_quantize(residuals[i], sent[1:], 0, form, rest=residuals[i]),
            peer_blocks,
            8 + 4 * each,
        ),
        "accumulate": Case(
            lambda i: native.accumulate(grads[i], residuals[i]), lambda i: residuals[i].add_(grads[i]), 12
        ),
    }
    return _seconds(lambda i: residuals[i].copy_(grads[i])), cases


def measure_queue() -> list[dict[str, float]]:
    """The queue and the bracket around where one takes over from the other: kQueueMaxNumel is to lie there."""
    device = torch.device("cuda")
    rows = []
    for numel in QUEUE_NUMELS:
        grads, residuals = ([torch.randn(numel, device=device) for _ in range(2)] for _ in range(2))
        for k in QUEUE_KS:
            row = {"numel": float(numel), "k": float(k)}
            for way in ("queue", "bracket"):
                with forced(device, way):
                    row[way] = 1e3 * _seconds(lambda i: native.topk_accumulate(grads[i], residuals[i], k))  # noqa: B023
            rows.append(row)
    return rows


def _seconds(call: Callable[[int], object]) -> float:
    times = []
    for repetition in range(REPETITIONS + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HEAD_START_CYCLES)  # an idle GPU would be timed waiting for Python
        start.record()
        call(repetition % 2)
        end.record()
        end.synchronize()
        if repetition >= 5:
            times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def page(report: dict[str, object]) -> str:
    figures, queue = report["figures"], report["queue"]
    assert isinstance(figures, list)
    assert isinstance(queue, list)
    lines = [
        f"# CUDA kernels on {report['card']}",
        "",
        f"torch {report['torch']}; {NUMEL:,} fp32 elements, ratio {RATIO}, {LISTS} lists; medians of {REPETITIONS}. "
        f"The floor is the kernel's bytes over the copy bandwidth of the same run, {figures[0]['copy_tb_s']:.2f} TB/s. "
        "`!` marks a missed bound. cub is torch's addition and cub::DeviceTopK. Made by `make gpu-check`.",
        f"Parity with the CPU twins: {report['parity']} results equal, bit by bit; "
        f"{report['graphs']} captured in graphs. "
        f"Sanitizers: {report['sanitizers']}. Training with 2 ranks on the GPU: {report['training']}.",
        "",
        "| kernel | ms | floor | of the copy bandwidth | bound on an H200 | torch ms | cub ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for f in figures:
        bound = f"{f['bound_ms'] or ''}{'' if f['within'] else ' !'}"
        cub = "" if f["cub_ms"] is None else f"{f['cub_ms']:.2f}"
        lines.append(
            f"| {f['kernel']} | {f['ms']:.3f} | {f['floor_ms']:.3f} | {f['of_bandwidth']:.0%} | {bound} | "
            f"{f['torch_ms']:.2f} | {cub} |"
        )
    lines += [
        "",
        "Few elements, ms: one block with a queue, and the sampled bracket.",
        "",
        "| elements | k | queue | bracket |",
        "| ---: | ---: | ---: | ---: |",
    ]
    lines += [f"| {r['numel']:,.0f} | {r['k']:.0f} | {r['queue']:.3f} | {r['bracket']:.3f} |" for r in queue]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
