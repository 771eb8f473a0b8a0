"""`make fuzz` looks at every target and every native decoder that there is, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance import malformed

ROOT = Path(__file__).parents[3]

ENCODERS = {
    *("topk", "topk_accumulate", "mstopk", "mstopk_accumulate", "magnitude_curve"),
    *("threshold_count", "threshold_select", "threshold_accumulate", "threshold_take"),
    *("sign_accumulate", "sign_accumulate_kept", "quantize_accumulate", "block_quantize"),
    *("block_encode", "elias_fano_encode", "coded_tables"),
}
"""What a rank calls with its own tensors, before anything travels."""
DENSE = {"accumulate", "scale"}
"""They take values as they are, any of them, and as many as the output has."""
LOCAL = {
    *("set_num_threads", "num_threads", "best_simd_level", "simd_level_of_kernels", "set_simd_level"),
    *("slow_selections", "embedding_initial_values", "decode_attention", "copy_tokens"),
}
"""Of this process alone."""


def test_it_names_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fuzz

    assert fuzz.TARGETS.keys() == malformed.TARGETS.keys()
    command = list(map(str, fuzz._command("bytes")))
    assert Path(command[1]).exists()
    assert command[2] == "bytes"
    assert "-max_total_time=75" in command


def test_the_seed_follows_from_the_payloads_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fuzz

    page = tmp_path / "page.md"
    page.write_text("| date | commit | payloads | s |\n| --- | --- | --- | --- |\n| 2026-12-01 | abc | 1,200 | 9 |\n")
    monkeypatch.setattr(fuzz, "RECORDED", page)
    monkeypatch.setattr(fuzz, "DECODERS", tmp_path)
    assert fuzz._payloads() == 1200
    (tmp_path / "state").write_text("seconds 3.5\ngather 30 10\nsign_add 4 4\n")
    assert fuzz._payloads() == 1234


def test_a_finding_is_told_with_the_payload_that_repeats_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fuzz

    program, folder = tmp_path / "program", tmp_path / "decoders"
    program.write_text('#!/bin/sh\nmkdir -p "$1"; echo payload > "$1/current"; echo "finding: x"; exit 1\n')
    program.chmod(0o755)
    for name, value in {"BUILD": tmp_path, "DECODERS": folder, "LOG": tmp_path / "log"}.items():
        monkeypatch.setattr(fuzz, name, value)
    monkeypatch.setattr(fuzz.sanitize, "decoder_fuzzer", lambda log: program)
    (found,) = fuzz._native_decoders()
    kept = found.rpartition("--repeat ")[2]
    assert "finding: x" in found
    assert Path(kept).read_text() == "payload\n"
    assert not (folder / "current").exists()


def test_every_native_function_is_fuzzed_or_decodes_nothing() -> None:
    """A new one is a line in tests/native/cpp/fuzz/{dense,sparse}.cpp, or above."""
    bindings = (path.read_text() for path in (ROOT / "csrc" / "bindings").glob("*.cpp"))
    bound = {name for text in bindings for name in re.findall(r'module\.def\("(\w+)"', text)}
    bound = {name for name in bound if not name.endswith("_workspace_bytes")}
    tables = (ROOT / "tests" / "native" / "cpp" / "fuzz" / name for name in ("dense.cpp", "sparse.cpp"))
    fuzzed = {
        name for path in tables for name in re.findall(r'^ +\{"(\w+)", \w+, &make', path.read_text(), re.MULTILINE)
    }
    assert len(fuzzed) == 11
    assert fuzzed == bound - ENCODERS - DENSE - LOCAL
    assert bound >= ENCODERS | DENSE | LOCAL
