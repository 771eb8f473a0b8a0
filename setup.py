"""Build the native extension with CMake, and the CUDA kernels where there is nvcc; all else is in pyproject.toml."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent

CUDA_LIBRARY = "libhvd_compress_cuda.so"
CUDA_ARCHITECTURES = (80, 90, 100)
# No contraction into fused multiply-add, as on the CPU: twins agree to the bit.
CUDA_FLAGS = [
    "-std=c++17", "-O3", "-fmad=false", "-Werror", "all-warnings", "-Xptxas", "-v,-warn-spills",
    "-Xcompiler", "-fPIC,-fvisibility=hidden",
]  # fmt: skip


def find_nvcc() -> str | None:
    """Nothing where HVD_COMPRESS_CUDA=0 says that no CUDA kernels are wanted."""
    if os.environ.get("HVD_COMPRESS_CUDA", "") == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    return shutil.which(str(Path(home, "bin", "nvcc"))) if home else shutil.which("nvcc")


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        # One folder for each Python, and the same one for every kind of install, so that rebuilding is incremental.
        build = ROOT / "build" / f"native-{sys.implementation.cache_tag}"
        werror = os.environ.get("HVD_COMPRESS_WERROR", "OFF")
        # pip's isolated build environments come and go: whatever lies in one is named, so CMake remembers none.
        configure = [
            f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DHVD_COMPRESS_WERROR={werror}",
            f"-DHVD_COMPRESS_MODULE_NAME={target.name}",
        ]
        self._run("cmake", "--log-level=WARNING", "-S", ROOT, "-B", build, "-G", "Ninja", *configure, quiet=True)
        self._run("cmake", "--build", build, "--", "--quiet")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / ext.name.rpartition(".")[2] / target.name, target)
        self._build_cuda(target.parent / CUDA_LIBRARY)

    def copy_extensions_to_source(self) -> None:
        """For `build_ext --inplace`, which otherwise knows of no libraries but extensions."""
        super().copy_extensions_to_source()
        built = Path(self.build_lib, "hvd_compress", CUDA_LIBRARY)
        here = ROOT / "hvd_compress" / CUDA_LIBRARY
        if built.exists():
            shutil.copy2(built, here)
        else:
            here.unlink(missing_ok=True)

    def _build_cuda(self, target: Path) -> None:
        """One library for all GPUs that this nvcc knows, and what ptxas says of its kernels in build/cuda/ptxas.log.

        Both are kept in the cache of the user, as they depend on nothing but the sources and nvcc, and take a while.
        """
        nvcc = find_nvcc()
        if nvcc is None:
            target.unlink(missing_ok=True)  # of an earlier build
            return
        known = self._ask(nvcc, "--list-gpu-arch")
        numbers = [number for number in CUDA_ARCHITECTURES if f"compute_{number}" in known]
        flags = [*CUDA_FLAGS, "-gencode", f"arch=compute_{numbers[-1]},code=compute_{numbers[-1]}"]
        for number in numbers:
            flags += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
        sources = sorted((ROOT / "csrc" / "cuda").rglob("*.cu"))
        key = hashlib.sha256("\n".join([self._ask(nvcc, "--version"), *flags]).encode())
        for path in sorted([*(ROOT / "csrc/cuda").rglob("*.*"), *(ROOT / "csrc/include").rglob("*.hpp")]):
            key.update(path.name.encode() + path.read_bytes())
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_compress" / "cuda"
        kept, build = cache / key.hexdigest()[:32], ROOT / "build" / "cuda"
        build.mkdir(parents=True, exist_ok=True)
        log = build / "ptxas.log"
        if not (kept / CUDA_LIBRARY).exists():
            print("building the CUDA kernels", flush=True)
            commands = []
            for source in sources:
                name = "_".join(source.relative_to(ROOT / "csrc/cuda").with_suffix("").parts)
                object_file = build / f"{name}.o"
                commands.append([nvcc, *flags, "-I", ROOT / "csrc/include", "-c", source, "-o", object_file])
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                reports = list(pool.map(self._compile, commands))
            log.write_text("".join(reports))
            objects = [command[-1] for command in commands]
            self._run(nvcc, "-shared", "-cudart", "static", *objects, "-o", build / CUDA_LIBRARY)
            # Put there as a whole: another build may look at the same time.
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                for path in (build / CUDA_LIBRARY, log):
                    shutil.copy2(path, folder)
                if not kept.exists():
                    shutil.copytree(folder, kept, dirs_exist_ok=True)
        shutil.copy2(kept / log.name, log)
        shutil.copy2(kept / CUDA_LIBRARY, target)

    def _ask(self, *command: object) -> str:
        return subprocess.run([str(word) for word in command], capture_output=True, text=True).stdout

    def _compile(self, command: list[object]) -> str:
        """Return what ptxas said."""
        words = [str(word) for word in command]
        result = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode != 0:
            sys.exit(f"error: building the CUDA kernels failed in: {' '.join(words)}\n{result.stdout}")
        return result.stdout

    def _run(self, *command: object, quiet: bool = False) -> None:
        """Without this, a failing compiler would end in a traceback of setuptools below its own messages."""
        words = [str(word) for word in command]
        if subprocess.run(words, stdout=subprocess.DEVNULL if quiet else None).returncode != 0:
            sys.exit(f"error: building the native extension failed in: {' '.join(words)}")


setup(ext_modules=[Extension("hvd_compress._native", sources=[])], cmdclass={"build_ext": CMakeBuild})
