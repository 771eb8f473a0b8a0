"""Run the tests of kernels and decoders with sanitizers.

sanitize.py build: builds what they need. sanitize.py memory: their first level, with AddressSanitizer and
UndefinedBehaviorSanitizer. sanitize.py rest: their second level, damaged payloads of the coder and of all decoders,
data races in the pool with ThreadSanitizer, and with the player in the CUDA kernels.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import player
import progress
import results

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "sanitize"
LOG = BUILD / "log"
NATIVE = ROOT / "build" / f"native-{sys.implementation.cache_tag}"
"""Where setup.py builds."""
COMPILER = shlex.split(os.environ.get("CXX") or "c++")
# The tests are some ten times slower so, and what they compare has been compared without sanitizers.
EXAMPLES = "0.05"
GUESTS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*/test_kernels.py"))
TESTS = ("tests/native", "tests/conformance/test_malformed.py", *GUESTS)
MUTATED = "600000"
"""Payloads: seconds."""
PLANTED = ("planted_read", "planted_write")
"""Of tests/native/cpp/fuzz/planted.cpp: one that AddressSanitizer sees, and one that it does not."""
IGNORED = tuple(f"tests/native/test_{each}.py" for each in ("cuda_build", "ends", "gil", "levels", "machine_code"))
"""Tests of tests/native that look at files, or would only wait."""
RUN_TESTS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import hvd_compress  # from there, before pytest puts the checkout first
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def main() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    LOG.unlink(missing_ok=True)
    failures = []
    parts = {"build": [_build], "memory": [_memory], "rest": [_threads, _coder, _decoders, _player, _rest]}
    for part in parts[sys.argv[1]]:
        try:
            part()
        except progress.StepError as error:
            failures.append(str(error))
            results.leave_failure(os.environ.get("TEST_RESULTS"), part.__name__.strip("_"), str(error))
    if failures:
        raise progress.StepError("\n\n".join(failures))


def _threads() -> None:
    program = BUILD / "pool_test"
    sources = [ROOT / "tests/native/cpp/pool_test.cpp", ROOT / "csrc/cpu/pool/pool.cpp"]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread"]
    progress.run("building the pool with ThreadSanitizer", [*COMPILER, *flags, *sources, "-o", program], LOG)
    progress.run("the pool under ThreadSanitizer", [program], LOG, os.environ | {"TSAN_OPTIONS": "halt_on_error=1"})


def _coder() -> None:
    program, coder = BUILD / "coded_test", ("cpu/coded/launcher.cpp", "cpu/coded/table.cpp", "cuda/coded/launcher.cu")
    sources = [
        ROOT / "tests/native/cpp/coded_test.cpp",
        *(ROOT / "csrc" / name for name in (*coder, "cpu/pool/pool.cpp")),
    ]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags = ["-std=c++17", "-O1", "-g", *sanitizers, "-pthread", "-I", ROOT / "csrc/include", "-x", "c++"]
    progress.run("building the coder with AddressSanitizer", [*COMPILER, *flags, *sources, "-o", program], LOG)
    progress.run("damaged payloads of the coder", [program], LOG)


def _decoders() -> None:
    """Let the fuzzer mutate some payloads, the same ones each time; and see that it finds defects which are planted."""
    program, folder = decoder_fuzzer(LOG), BUILD / "decoders"
    shutil.rmtree(folder, ignore_errors=True)
    progress.run("mutated payloads of all decoders", [program, folder, "--count", MUTATED, "--seed", "1"], LOG)
    for planted in PLANTED:
        command = [program, folder / planted, "--count", MUTATED, "--only", planted]
        for trial in (command, [program, "--repeat", folder / planted / "current"]):
            if subprocess.run(trial, capture_output=True).returncode != 1:
                raise progress.StepError(
                    f"the fuzzer of decoders does not find a defect: {shlex.join(map(str, trial))}"
                )


def _player() -> None:
    player.build(LOG)
    tests = [sys.executable, "-m", "pytest", *_options("player"), "tests/player"]
    progress.run("the CUDA kernels with all threads at once", tests, LOG)


def _build() -> None:
    sanitized(LOG)


def _memory() -> None:
    _pytest("the kernels under AddressSanitizer", "memory", "not level2")


def _rest() -> None:
    _pytest("the other levels under AddressSanitizer", "memory-rest", "level2")


def _pytest(title: str, name: str, marked: str) -> None:
    """Run the tests of the kernels and of malformed payloads on the sanitized package."""
    package, variables = sanitized(LOG)
    options = [*_options(name), "-m", marked, *(f"--ignore={test}" for test in IGNORED)]
    tests = [sys.executable, "-c", RUN_TESTS, package, *options, *TESTS]
    progress.run(title, tests, LOG, os.environ | variables)


def _options(name: str) -> list[str]:
    """Of pytest, which leaves its results in a file of this name, where TEST_RESULTS names a folder."""
    # worksteal: the levels of one test on one worker, which keeps what they are compared with
    options = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal"]
    folder = os.environ.get("TEST_RESULTS")
    return [*options, f"--junitxml={folder}/{name}.xml"] if folder else options


def decoder_fuzzer(log: Path) -> Path:
    """Build tests/native/cpp/fuzz, and return the program."""
    build = ["cmake", "--build", NATIVE, "--target", "fuzz_decoders"]
    progress.run("building the decoders with AddressSanitizer", build, log)
    return NATIVE / "fuzz_decoders"


def sanitized(log: Path) -> tuple[Path, dict[str, str]]:
    """Build the package with sanitizers: its modules are links, and its compiled module is the sanitized one.

    Returns:
        The folder to import it from, and what the environment must say.
    """
    package = BUILD / "package" / "hvd_compress"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for path in (ROOT / "hvd_compress").iterdir():
        if path.suffix != ".so" and path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    (module,) = (ROOT / "hvd_compress").glob("_native*.so")
    build = ["cmake", "--build", NATIVE, "--target", "_sanitized", "tiles_sanitized"]
    progress.run("building the kernels with AddressSanitizer", build, log)
    (package / module.name).symlink_to(NATIVE / "_sanitized" / module.name)
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so")]
    return package.parent, {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own would be too many
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "HVD_COMPRESS_TEST_EXAMPLES": EXAMPLES,
        "HVD_COMPRESS_TILES": str(NATIVE / "tiles_sanitized.so"),
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
    }


def _library(name: str) -> str:
    found = subprocess.run([*COMPILER, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        raise progress.StepError(f"{COMPILER[0]} has no {name}: install the sanitizers of this compiler (GCC has them)")
    return found


if __name__ == "__main__":
    os.chdir(ROOT)
    progress.main(main)
