"""Profiles as files: what is wrong with one is said by its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvd_compress.errors import PlanError
from hvd_compress.profiler import profiles
from hvd_compress.profiler.profiles import CompressorProfile, ModelProfile, SystemProfile

TENSOR = {"name": "fc.weight", "numel": 6, "backward_us": 12.5}
MODEL: dict[str, Any] = {"model": "tiny", "tensors": [TENSOR, TENSOR | {"name": "fc.bias", "shape": [2, 3]}]}
TIMES = {"numel": [1, 1000], "us": [10.0, 20.0]}
COMPRESSOR: dict[str, Any] = {
    "compressor": {"name": "topk", "ratio": 0.01},
    "payload": {"per_element_bytes": 0.08},
    "devices": {"training": {"compress": TIMES, "decompress": TIMES}},
}
LINK = {"alpha_us": 5.0, "bytes_per_s": 1e9}
CURVE = {"verb": "allreduce", "algorithm": "auto", "bytes": [1, 1000], "seconds": [1e-5, 2e-5]}
SYSTEM: dict[str, Any] = {"hosts": 2, "ranks_per_host": 4, "within": LINK, "across": LINK}


@pytest.mark.parametrize(
    ("kind", "said"), [(ModelProfile, MODEL), (CompressorProfile, COMPRESSOR), (SystemProfile, SYSTEM)]
)
def test_written_is_read(kind: type, said: dict[str, Any], tmp_path: Path) -> None:
    path, again = tmp_path / "profile.json", tmp_path / "again.json"
    path.write_text(json.dumps(said))
    first = profiles.read(path, kind)
    profiles.write(again, first)
    assert profiles.read(again, kind) == first
    assert json.loads(again.read_text())["schema"].startswith("hvd_compress/")


def _tensor(**changed: Any) -> dict[str, Any]:
    return MODEL | {"tensors": [TENSOR, TENSOR | changed]}


@pytest.mark.parametrize(
    ("kind", "said", "words"),
    [
        (ModelProfile, {"model": "tiny"}, "tensors: is missing"),
        (ModelProfile, MODEL | {"tensors": []}, "tensors: "),
        (ModelProfile, _tensor(backward_us=-1.0), "tensors.1.backward_us: .*greater than or equal to 0"),
        (ModelProfile, _tensor(backward_us=float("nan")), "tensors.1.backward_us: .*finite"),
        (ModelProfile, _tensor(numel=0), "tensors.1.numel"),
        (ModelProfile, _tensor(shape=[2, 2]), r"tensors.1: shape \[2, 2\] has 4 elements, and numel is 6"),
        (ModelProfile, MODEL | {"parameters": 7}, "parameters is 7, and the tensors have 12 elements"),
        (ModelProfile, MODEL | {"version": 2}, "version"),
        (ModelProfile, MODEL | {"tensor": []}, "tensor: unknown field"),
        (ModelProfile, SYSTEM, "model: is missing"),
        (CompressorProfile, COMPRESSOR | {"compressor": {}}, "compressor: needs a name"),
        (CompressorProfile, COMPRESSOR | {"devices": {"gpu": {}}}, "devices.gpu"),
        (CompressorProfile, COMPRESSOR | {"payload": {}}, "payload.per_element_bytes: is missing"),
        (
            CompressorProfile,
            COMPRESSOR | {"devices": {"host": {"compress": TIMES, "decompress": TIMES | {"us": [1.0]}}}},
            "devices.host.decompress: not a curve: 1 times at sizes",
        ),
        (SystemProfile, SYSTEM | {"hosts": 0}, "hosts"),
        (SystemProfile, SYSTEM | {"across": LINK | {"bytes_per_s": 0.0}}, "across.bytes_per_s"),
        (SystemProfile, SYSTEM | {"within": LINK | {"curves": [{"verb": "allreduce"}]}}, "within.curves.0.bytes: is"),
        (SystemProfile, SYSTEM | {"within": LINK | {"curves": [CURVE | {"bytes": [2, 1]}]}}, "within.curves.0: not a"),
        (SystemProfile, SYSTEM | {"within": LINK | {"curves": [CURVE | {"bytes": [True, 9]}]}}, "curves.0.bytes.0: .*"),
    ],
)
def test_what_is_wrong_is_named(kind: type, said: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(said))
    with pytest.raises(PlanError, match=words):
        profiles.read(path, kind)


def test_files_that_lie_together_are_of_one_run(tmp_path: Path) -> None:
    kinds: dict[str, tuple[type, dict[str, Any]]] = {
        "model.json": (ModelProfile, MODEL),
        "system.json": (SystemProfile, SYSTEM),
        "compressor.json": (CompressorProfile, COMPRESSOR),
    }

    def read(**runs: str) -> dict[Path, profiles.AnyProfile]:
        found: dict[Path, profiles.AnyProfile] = {}
        for name, (kind, said) in kinds.items():
            path = tmp_path / name
            path.write_text(json.dumps(said | {"run": runs[path.stem]}))
            found[path] = profiles.read(path, kind)
        return found

    profiles.require_one_run(read(model="a", system="a", compressor="a"))
    profiles.require_one_run(read(model="a", system="", compressor="a"))
    mixed = read(model="a", system="a", compressor="b")
    with pytest.raises(PlanError, match=r"model.json and compressor.json beside it are of different runs, a and b"):
        profiles.require_one_run(mixed)
    elsewhere = {tmp_path / path.stem / path.name: found for path, found in mixed.items()}
    profiles.require_one_run(elsewhere)
    profiles.require_one_run({path.with_name(f"{path.stem}-{found.run}.json"): found for path, found in mixed.items()})


def test_the_system_of_the_page_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "profile.md").read_text()
    (tmp_path / "system.json").write_text(page.partition("```json\n")[2].partition("```")[0])
    assert profiles.read(tmp_path / "system.json", SystemProfile).hosts == 8


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the profile of a model"):
        profiles.read(tmp_path / "missing.json", ModelProfile)


def test_traces_are_profiles_of_models() -> None:
    traces = sorted((Path(__file__).parents[4] / "shared" / "data" / "traces").glob("*.json"))
    if not traces:
        pytest.skip("no ../shared/data/traces here")
    assert sum(len(profiles.read(trace, ModelProfile).tensors) for trace in traces) == 1415
