"""Build the native extension with CMake, the relay on Linux, and the CUDA kernels where there is nvcc; all else is in
pyproject.toml.

HVD_COMPRESS_RELAY=0 leaves the relay of the network lab out. With CMAKE_TOOLCHAIN_FILE, which CMake reads by itself,
another compiler builds, in a folder of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
RELAY = Path("netlab", "netlab_relay")
"""The program of the network lab, in the package."""
WITH_RELAY = sys.platform == "linux" and os.environ.get("HVD_COMPRESS_RELAY") != "0"
DEVELOPMENT = {"benchmarks": "benchmarks", "images": "examples/images", "recommendation": "examples/recommendation"}
"""Packages of an editable installation alone, and their folders: benchmarks import those of the examples."""
sys.path.insert(0, str(ROOT / "tools"))

import build_cuda  # noqa: E402  (lies in tools)


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        # One folder for each Python, and the same one for every kind of install, so that rebuilding is incremental.
        toolchain = os.environ.get("CMAKE_TOOLCHAIN_FILE", "")
        build = ROOT / "build" / f"{Path(toolchain).stem or 'native'}-{sys.implementation.cache_tag}"
        werror = os.environ.get("HVD_COMPRESS_WERROR", "OFF")
        # pip's isolated build environments come and go: whatever lies in one is named, so CMake remembers none.
        configure = [
            f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DHVD_COMPRESS_WERROR={werror}",
            f"-DHVD_COMPRESS_MODULE_NAME={target.name}",
            f"-DHVD_COMPRESS_RELAY={'ON' if WITH_RELAY else 'OFF'}",
        ]
        self._run("cmake", "--log-level=WARNING", "-S", ROOT, "-B", build, "-G", "Ninja", *configure, quiet=True)
        self._run("cmake", "--build", build, "--", "--quiet")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / ext.name.rpartition(".")[2] / target.name, target)
        if WITH_RELAY:
            _replace(build / RELAY.name, target.parent / RELAY)
        else:
            (target.parent / RELAY).unlink(missing_ok=True)  # of an earlier build
        try:
            build_cuda.build(target.parent / build_cuda.LIBRARY)
        except build_cuda.BuildError as error:
            sys.exit(f"error: {error}")

    def copy_extensions_to_source(self) -> None:
        """For `build_ext --inplace`, which otherwise knows of nothing but extensions."""
        super().copy_extensions_to_source()
        for optional in (RELAY, Path(build_cuda.LIBRARY)):
            built, here = Path(self.build_lib, "hvd_compress", optional), ROOT / "hvd_compress" / optional
            if built.exists():
                _replace(built, here)
            else:
                here.unlink(missing_ok=True)

    def _run(self, *command: object, quiet: bool = False) -> None:
        """Without this, a failing compiler would end in a traceback of setuptools below its own messages."""
        words = [str(word) for word in command]
        if subprocess.run(words, stdout=subprocess.DEVNULL if quiet else None).returncode != 0:
            sys.exit(f"error: building the native extension failed in: {' '.join(words)}")


class Editable(editable_wheel):
    def finalize_options(self) -> None:
        self.distribution.packages += list(DEVELOPMENT)
        self.distribution.package_dir = DEVELOPMENT
        super().finalize_options()


def _replace(built: Path, target: Path) -> None:
    """A program that is running cannot be written to, but its name can be given to another one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    shutil.copy2(built, target)


setup(
    ext_modules=[Extension("hvd_compress._native", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "editable_wheel": Editable},
)
