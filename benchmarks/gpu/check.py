"""Check the CUDA kernels on this machine's GPU: build, compare with the CPU twins, run the sanitizers, measure.

Needs nvcc, a torch that sees the GPU, and what builds the package (CMake, ninja, pybind11); it fetches nothing.

python benchmarks/gpu/check.py [--parity-only] [--rounds N] [--out FOLDER]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from hvd_compress import native  # noqa: E402  (from this checkout)

Tensors = tuple[torch.Tensor, ...]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = (0, 1, 5, 63, 4095, 4096, 4097, 16_384, 70_001, 1_000_003)
NUMEL, RATIO, LISTS, REPETITIONS = 100_000_000, 0.01, 8, 50
SANITIZERS = ("memcheck", "racecheck", "initcheck")
BOUNDS_MS = {"topk_accumulate": 0.45, "sign_accumulate": 0.36, "scatter_lists": 0.16, "gain_curve": 0.20}
"""What the kernels may take on an H200, 100 M elements."""


@click.command(help=__doc__)
@click.option("--parity-only", is_flag=True, help="Neither build, nor sanitizers, nor measurements.")
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(min=1), help="Of random inputs.")
@click.option("--out", default=ROOT / "benchmarks" / "results", type=click.Path(path_type=Path), show_default=True)
def main(parity_only: bool, rounds: int, out: Path) -> None:
    if not torch.cuda.is_available():
        raise click.ClickException("torch sees no GPU here; run this on a machine that has one")
    if not parity_only:
        click.echo("building")
        subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=ROOT, check=True)
    compared = parity(torch.device("cuda"), rounds)
    click.echo(f"parity: {compared} results equal to the CPU's, bit by bit")
    if parity_only:
        return
    sanitized = {tool: sanitize(tool) for tool in SANITIZERS}
    card = torch.cuda.get_device_name()
    report = {
        "card": card, "torch": torch.__version__, "numel": NUMEL, "parity": compared,
        "sanitizers": sanitized, "figures": measure(),
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"gpu-{card.lower().replace(' ', '-')}"
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    stem.with_suffix(".md").write_text(page(report))
    click.echo(stem.with_suffix(".md").read_text())


def parity(device: torch.device, rounds: int) -> int:
    """Compare every kernel on the device with the CPU's; return how many results were equal, or raise at the first
    that is not."""
    compared = 0
    for number in range(rounds):
        generator = torch.Generator().manual_seed(number)
        for n in SIZES:
            grad_dtype = DTYPES[number % 3]
            residual_dtype = grad_dtype if number % 2 else torch.float32
            grad = _draw(number, n, generator).to(grad_dtype)
            residual = _draw(number + 1, n, generator).to(residual_dtype)
            k = int(torch.randint(0, n + 1, (), generator=generator))
            for name, call in _calls(k).items():
                expected = call(grad.clone(), residual.clone())
                found = call(grad.to(device), residual.to(device))
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

    def signs(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        bits, scale = native.sign_accumulate(grad, residual)
        native.sign_add(bits, scale, grad, 0.3)
        return bits, scale, grad, residual

    def numbers(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        bits = (2, 4, 8)[k % 3]
        packed, norm = native.quantize_accumulate(
            grad, residual, bits, seed=k, step=3, bucket=5, norm=("l2", "max")[k % 2]
        )
        native.quantize_add(packed, norm, grad, bits, 0.3)
        return packed, norm, grad, residual

    def curve(grad: torch.Tensor, residual: torch.Tensor) -> Tensors:
        return (native.gain_curve(grad).counts,)  # shares are sums of torch's

    return {
        "quantize": numbers,
        "gain_curve": curve,
        "threshold_select": lambda grad, residual: native.threshold_select(grad, 1.5),
        "topk": lambda grad, residual: native.topk(grad, k),
        "topk_accumulate": lambda grad, residual: (*native.topk_accumulate(grad, residual, k), residual),
        "accumulate": lambda grad, residual: (torch.tensor(native.accumulate(grad, residual)), residual),
        "sign": signs,
        "scatter_lists": lists,
        "gather, take, scatter_add": at_indices,
    }


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the bit, the sign of zero included; a NaN only has to be a NaN."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    whole = torch.int32 if a.dtype == torch.float32 else torch.int16
    return bool(((a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())).all())


def sanitize(tool: str) -> str:
    """Run the comparison under a tool of compute-sanitizer; return "clean" or what to read."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return "not run: no compute-sanitizer on PATH"
    click.echo(f"compute-sanitizer {tool}")
    command = [
        program,
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        sys.executable,
        __file__,
        "--parity-only",
        "--rounds=2",
    ]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode == 0:
        return "clean"
    click.echo(result.stdout[-4000:], err=True)
    return f"exit code {result.returncode}: {result.stdout.strip().splitlines()[-1]}"


def measure() -> list[dict[str, object]]:
    """Medians over inputs that take turns, so that none is left in the cache."""
    device = torch.device("cuda")
    grads = [torch.randn(NUMEL, device=device) for _ in range(2)]
    residuals = [torch.randn(NUMEL, device=device) for _ in range(2)]
    k = int(NUMEL * RATIO)
    lists = [native.topk(grads[0].roll(101 * rank), k) for rank in range(LISTS)]
    copy_s = _seconds(lambda i: residuals[i].copy_(grads[i]))
    bandwidth = 8 * NUMEL / copy_s

    def peer_topk(i: int) -> None:
        residuals[i] += grads[i]
        indices = residuals[i].abs().topk(k).indices
        values = residuals[i][indices]
        residuals[i][indices] = 0
        _ = values

    def peer_sign(i: int) -> None:
        residuals[i] += grads[i]
        scale = residuals[i].abs().mean()
        residuals[i] -= torch.where(residuals[i] < 0, -scale, scale)

    def peer_lists(i: int) -> None:
        residuals[i].zero_()
        for indices, values in lists:
            residuals[i].index_add_(0, indices, values, alpha=1 / LISTS)

    cases: dict[str, tuple[Callable[[int], object], Callable[[int], object], float]] = {
        "topk_accumulate": (lambda i: native.topk_accumulate(grads[i], residuals[i], k), peer_topk, 12 + 8 * RATIO),
        "sign_accumulate": (lambda i: native.sign_accumulate(grads[i], residuals[i]), peer_sign, 12.125),
        "scatter_lists": (
            lambda i: native.scatter_lists(lists, residuals[i], 1 / LISTS, clear=True), peer_lists,
            4 + 8 * LISTS * RATIO,
        ),
    }  # fmt: skip
    cases["gain_curve"] = (lambda i: native.gain_curve(grads[i]), lambda i: grads[i].abs().sort(), 4)
    figures: list[dict[str, object]] = []
    for name, (ours, peer, bytes_each) in cases.items():
        seconds, floor_s = _seconds(ours), bytes_each * NUMEL / bandwidth
        figures.append(
            {
                "kernel": name,
                "ms": 1e3 * seconds,
                "floor_ms": 1e3 * floor_s,
                "times_floor": seconds / floor_s,
                "bound_ms": BOUNDS_MS[name],
                "torch_ms": 1e3 * _seconds(peer),
                "copy_tb_s": bandwidth / 1e12,
            }
        )
    return figures


def _seconds(call: Callable[[int], object]) -> float:
    times = []
    for repetition in range(REPETITIONS + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(repetition % 2)
        end.record()
        end.synchronize()
        if repetition >= 5:
            times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def page(report: dict[str, object]) -> str:
    figures = report["figures"]
    assert isinstance(figures, list)
    lines = [
        f"# CUDA kernels on {report['card']}",
        "",
        f"torch {report['torch']}; {NUMEL:,} fp32 elements, ratio {RATIO}, {LISTS} lists; medians of {REPETITIONS}. "
        "The floor is the kernel's bytes over the copy bandwidth of the same run. Made by `make gpu-check`.",
        f"Parity with the CPU twins: {report['parity']} results equal, bit by bit. Sanitizers: {report['sanitizers']}.",
        "",
        "| kernel | ms | floor | x floor | bound on an H200 | torch ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for f in figures:
        lines.append(
            f"| {f['kernel']} | {f['ms']:.3f} | {f['floor_ms']:.3f} | {f['times_floor']:.2f} | {f['bound_ms']} | "
            f"{f['torch_ms']:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
