"""Look for malformed payloads that a decoder does not bear, with coverage as a guide: `make fuzz`.

First the native decoders by themselves, some 200,000 payloads a second (tests/native/cpp/fuzz). Then the properties of
tests/conformance/malformed.py, with inputs from libFuzzer (atheris). The kernels are built with AddressSanitizer and
UndefinedBehaviorSanitizer. Inputs that take new ways through the code are kept in build/fuzz for the next run, and so
is the number of payloads, from which the next seed follows. A finding ends its part; what is printed repeats it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import progress
import sanitize

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
LOG = BUILD / "log"
SECONDS = int(os.environ.get("FUZZ_S", "300"))
HANGS_S, MEMORY_MB = 120, 4096
TARGETS = {
    "bytes": "damaged bytes, by every collective",
    "lies": "well-formed lies, to every compressor",
    "sums": "well-formed lies, to owners of shards",
}
"""Of tests/conformance/malformed.py; with the native decoders they share the time."""
DECODERS = BUILD / "decoders"
RECORDED = ROOT / "benchmarks" / "results" / "fuzz.md"


def main() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    LOG.unlink(missing_ok=True)
    failures = [*_native_decoders(), *_properties()]
    if failures:
        raise progress.StepError("\n\n".join(failures))


def _native_decoders() -> list[str]:
    """Return what was found."""
    program = sanitize.decoder_fuzzer(LOG)
    command = [program, DECODERS, "--seconds", str(_seconds()), "--seed", str(_payloads())]
    try:
        progress.run("mutated payloads of all native decoders", command, LOG)
    except progress.StepError as error:
        current, found = DECODERS / "current", BUILD / "found" / "decoders" / str(_payloads())
        if not current.exists():
            return [str(error)]
        found.parent.mkdir(parents=True, exist_ok=True)
        current.replace(found)
        return [f"{error}\n\nrepeat it: {program} --repeat {found}"]
    print(LOG.read_text(errors="replace").splitlines()[-1])
    return []


def _payloads() -> int:
    """Return how many payloads were decoded up to now: as the page has them, and those of build/fuzz."""
    rows = re.findall(r"^\| \d{4}-\d\d-\d\d \|[^|]*\| ([\d,]+) \|", RECORDED.read_text(), re.MULTILINE)
    state = DECODERS / "state"
    lines = state.read_text().splitlines()[1:] if state.exists() else []
    return sum(int(row.replace(",", "")) for row in rows) + sum(int(line.split()[1]) for line in lines)


def _properties() -> list[str]:
    """Return what was found."""
    packages = BUILD / "packages"
    if not (packages / "atheris").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--target", packages]
        progress.run("installing the fuzzer", [*pip, "-r", ROOT / "requirements" / "fuzz.txt"], LOG)
    package, variables = sanitize.sanitized(LOG)
    path = os.pathsep.join(map(str, (package, packages, ROOT)))
    variables |= {
        "PYTHONPATH": path,
        # The sanitizers' library has functions of the same names that do nothing, so the fuzzer must come first.
        "LD_PRELOAD": f"{_fuzzer(packages)} {variables['LD_PRELOAD']}",
        "ASAN_OPTIONS": f"{variables['ASAN_OPTIONS']}:verify_asan_link_order=0",
    }
    failures = []
    for target, title in TARGETS.items():
        try:
            progress.run(title, _command(target), LOG, os.environ | variables)
        except progress.StepError as error:
            failures.append(f"{error}\n\n{_how_to_repeat(target)}")
    return failures


def _seconds() -> int:
    return max(1, SECONDS // (1 + len(TARGETS)))


def _how_to_repeat(target: str) -> str:
    """Return the call that failed, as the target has printed it, or the inputs that crashed it before it could."""
    calls = [line for line in LOG.read_text(errors="replace").splitlines() if line.startswith("repeat it: ")]
    inputs = [f"input: {path}" for path in sorted((BUILD / "found" / target).iterdir())]
    return "\n".join([*calls[-1:], *inputs, f"log: {LOG}"])


def _fuzzer(packages: Path) -> Path:
    """Return a library of libFuzzer, which atheris brings as an archive."""
    library, archive = BUILD / "libfuzzer.so", packages / "libclang_rt.fuzzer_no_main.a"
    whole = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-lpthread", "-ldl"]
    progress.run("linking the fuzzer", [*sanitize.COMPILER, "-shared", "-o", library, *whole], LOG)
    return library


def _command(target: str) -> list[str | Path]:
    corpus, found = BUILD / "corpus" / target, BUILD / "found" / target
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={_seconds()}",
        f"-artifact_prefix={found}/",
        f"-timeout={HANGS_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        "-max_len=2048",
        "-len_control=0",
        "-print_final_stats=1",
    ]
    return [sys.executable, ROOT / "tests" / "conformance" / "fuzz_target.py", target, corpus, *options]


if __name__ == "__main__":
    os.chdir(ROOT)
    progress.main(main)
