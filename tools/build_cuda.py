"""Build the CUDA kernels into one library, with nothing but nvcc and this Python.

HVD_COMPRESS_CUDA_ARCH=90 builds for that architecture alone, in a third of the time; several are separated by commas.

python tools/build_cuda.py [FILE]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "libhvd_compress_cuda.so"
LOG = ROOT / "build" / "cuda" / "ptxas.log"
"""What ptxas says of every kernel: registers, and what it spills."""
CUBINS = ROOT / "build" / "cuda" / "cubins"
"""The machine code of each source for READ_ARCHITECTURE, for tests that read it."""
READ_ARCHITECTURE = 90

ARCHITECTURES = (80, 90, 100)
# No contraction into fused multiply-add, as on the CPU: twins agree to the bit.
FLAGS = [
    "-std=c++17", "-O3", "-fmad=false", "-Werror", "all-warnings", "-Xptxas", "-v,-warn-spills",
    "-Xcompiler", "-fPIC,-fvisibility=hidden",
]  # fmt: skip


class BuildError(Exception):
    """nvcc is there and fails."""


def find_nvcc() -> str | None:
    """Nothing where there is none, or where HVD_COMPRESS_CUDA=0 says that no CUDA kernels are wanted."""
    if os.environ.get("HVD_COMPRESS_CUDA", "") == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    return shutil.which(str(Path(home, "bin", "nvcc"))) if home else shutil.which("nvcc")


def build(target: Path) -> bool:
    """Build for all GPUs that this nvcc knows, and PTX for newer ones; return False, and leave nothing, without nvcc.

    Raises BuildError where nvcc fails, or does not know what HVD_COMPRESS_CUDA_ARCH asks for.

    What was built is kept in the user's cache: it depends on nothing but the sources and nvcc, and takes a minute.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        target.unlink(missing_ok=True)  # of an earlier build
        return False
    flags = [*FLAGS, *_targets(_output(nvcc, "--list-gpu-arch"))]
    kept = _cache() / _key(_output(nvcc, "--version"), flags)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    if not (kept / LIBRARY).exists():
        print("building the CUDA kernels", flush=True)
        built = LOG.parent / LIBRARY
        LOG.write_text(_compile(nvcc, flags, built))
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            shutil.copy2(LOG, folder)
            shutil.copytree(CUBINS, Path(folder, CUBINS.name))
            shutil.copy2(built, folder)  # last: where it is, all is
            shutil.copytree(folder, kept, dirs_exist_ok=True)
    shutil.copy2(kept / LOG.name, LOG)
    shutil.rmtree(CUBINS, ignore_errors=True)
    shutil.copytree(kept / CUBINS.name, CUBINS)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(kept / LIBRARY, target)
    return True


def _targets(known: str) -> list[str]:
    """Return flags of nvcc: machine code for each architecture, and PTX of the last one. `known`: what it lists."""
    numbers = _asked() or [number for number in ARCHITECTURES if f"compute_{number}" in known.split()]
    if not numbers:
        raise BuildError(f"this nvcc knows none of the architectures {ARCHITECTURES}; install a newer CUDA toolkit")
    unknown = [number for number in numbers if f"compute_{number}" not in known.split()]
    if unknown:
        raise BuildError(
            f"this nvcc does not know the architecture {unknown[0]} of HVD_COMPRESS_CUDA_ARCH; unset it, or install "
            "another CUDA toolkit"
        )
    codes = [f"arch=compute_{number},code=sm_{number}" for number in numbers]
    codes.append(f"arch=compute_{numbers[-1]},code=compute_{numbers[-1]}")
    return [word for code in codes for word in ("-gencode", code)]


def _asked() -> list[int]:
    """Return the architectures of HVD_COMPRESS_CUDA_ARCH, in ascending order; none where it is not set."""
    words = [word.strip() for word in os.environ.get("HVD_COMPRESS_CUDA_ARCH", "").split(",") if word.strip()]
    bad = [word for word in words if not (word.isascii() and word.isdecimal())]
    if bad:
        raise BuildError(f"HVD_COMPRESS_CUDA_ARCH: {bad[0]!r} is no architecture, such as 90 of an H100")
    return sorted({int(word) for word in words})


def _key(version: str, flags: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join([version, *flags]).encode())
    for path in sorted([*(ROOT / "csrc/cuda").rglob("*.*"), *(ROOT / "csrc/include").rglob("*.hpp")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def _cache() -> Path:
    """Beside the wheels of Horovod (tools/install_horovod.py)."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HVD_COMPRESS_CACHE") or Path(home, "hvd_compress")) / "cuda"


def _compile(nvcc: str, flags: Sequence[str], library: Path) -> str:
    """Return what ptxas said."""
    shutil.rmtree(CUBINS, ignore_errors=True)
    CUBINS.mkdir()
    sources = sorted((ROOT / "csrc/cuda").rglob("*.cu"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports, objects = zip(*pool.map(lambda source: _compile_one(nvcc, flags, source), sources), strict=True)
    _run([nvcc, "-shared", "-cudart", "static", *objects, "-o", library])
    return "".join(reports)


def _compile_one(nvcc: str, flags: Sequence[str], source: Path) -> tuple[str, Path]:
    """Return what ptxas said, and the object; leave its cubin."""
    name = "_".join(source.relative_to(ROOT / "csrc/cuda").with_suffix("").parts)
    made = LOG.parent / f"{name}.o"
    with tempfile.TemporaryDirectory(dir=LOG.parent) as folder:
        keep = ["--keep", "--keep-dir", folder]
        report = _run([nvcc, *flags, *keep, "-I", ROOT / "csrc/include", "-c", source, "-o", made])
        for cubin in Path(folder).glob(f"*_{READ_ARCHITECTURE}.cubin"):
            shutil.copy2(cubin, CUBINS / f"{name}.cubin")
    return report, made


def _run(command: Sequence[object]) -> str:
    words = [str(word) for word in command]
    result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise BuildError(
            f"building the CUDA kernels failed in: {' '.join(words)}\n{result.stdout}"
            "HVD_COMPRESS_CUDA=0 builds without them"
        )
    return result.stdout


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "hvd_compress" / LIBRARY
    try:
        sys.exit(0 if build(file) else "error: no nvcc on PATH or in CUDA_HOME")
    except BuildError as error:
        sys.exit(f"error: {error}")
