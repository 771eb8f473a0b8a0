"""Numbers that nothing has, in any place of a profile: an error that names the place, and never another one."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import COMPRESSORS
from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.papers.espresso.making import NAMES, Inputs
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.policies.plan_schema import read as read_plan
from hvd_compress.profiler.profiles import LONGEST_US, MOST_BYTES, MOST_BYTES_PER_S, MOST_ELEMENTS, MOST_RANKS
from tests.absurd import ABSURD, LEAVES, put, said
from tests.unit.profiler import profile_files


def planned(folder: Path, files: dict[str, Any]) -> Problem:
    profile_files.write(folder, **files)
    inputs = Inputs.read({name: folder / file for name, file in NAMES.items()})
    problem = Problem(inputs.model, inputs.system, inputs.profile)
    problem.end_ns(problem.uniform(problem.options[0]))
    return problem


def test_without_them_it_can_be_planned(tmp_path: Path) -> None:
    assert planned(tmp_path, said()).options
    assert len(LEAVES) > 70


@pytest.mark.parametrize("leaf", ABSURD, ids=repr)
def test_one_absurd_number_is_named(leaf: Any, tmp_path: Path) -> None:
    """What a number may be is read: a time of 5e-324, and nothing in the place of what may be left out."""
    read_all = []
    for path in LEAVES:
        file, *rest = path
        try:
            planned(tmp_path, put(said(), path, leaf))
        except PlanError as error:
            words = str(error)
            assert file in words, (path, words)
            named = [".".join(map(str, rest[:end])) for end in range(1, len(rest) + 1)]
            assert any(f"{name}: " in words for name in named) or rest[0] in words, (path, words)
            assert len(words) < 1500, path
        else:
            read_all.append(path)
    optional = {"backward_us_sd", "shape", "parameters", "steps"}
    assert all(leaf in (None, 5e-324) or path[-1] in optional for path in read_all), read_all


@pytest.mark.level2
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_the_ends_of_what_may_be_read_are_planned_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Together, too: no sum or product of them leaves what the planner computes with."""
    ends = {
        "backward_us": (0.0, LONGEST_US / 2),
        "forward_us": (0.0, LONGEST_US),
        "alpha_us": (0.0, LONGEST_US),
        "bytes_per_s": (1.0, MOST_BYTES_PER_S),
        "hosts": (1, MOST_RANKS),
        "ranks_per_host": (1, MOST_RANKS),
        "per_tensor_bytes": (0.0, MOST_BYTES),
    }
    files = said()
    del files["model"]["parameters"]
    for path in LEAVES:
        if path[-1] in ends and data.draw(st.booleans()):
            files = put(files, path, data.draw(st.sampled_from(ends[path[-1]])))
    if data.draw(st.booleans()):
        files["model"]["tensors"][0].update(numel=MOST_ELEMENTS - 5)
        files["model"]["tensors"][0].pop("shape")
    if data.draw(st.booleans()):
        for device in files["compressor"]["devices"].values():
            device["compress"] = {"numel": [1, 2], "us": [LONGEST_US / 2, LONGEST_US]}
    with suppress(ConfigError):
        assert planned(tmp_path, files).options


@pytest.mark.parametrize(("first", "second"), [("numel", MOST_ELEMENTS), ("backward_us", LONGEST_US)])
def test_sums_have_a_limit_too(first: str, second: float, tmp_path: Path) -> None:
    files = said()
    for tensor in files["model"]["tensors"]:
        tensor.pop("shape")
        tensor[first] = second
    del files["model"]["parameters"]
    with pytest.raises(PlanError, match=f"tensors: their {first} add up to"):
        planned(tmp_path, files)


@pytest.mark.parametrize(
    ("path", "leaf", "words"),
    [
        (
            ("system", "across"),
            {"alpha_us": 0.0, "bytes_per_s": 1.0},
            "within, across: of the system: .*@.* would take",
        ),
        (
            ("compressor", "devices", "training", "compress"),
            {"numel": [1, 2], "us": [1.0, LONGEST_US]},
            "devices: of the compressor: comp@training would take .* s for 1,000,000 elements, and 10,000 s are",
        ),
    ],
)
def test_what_takes_longer_than_can_be_planned(path: tuple[str, ...], leaf: Any, words: str, tmp_path: Path) -> None:
    files = put(said(), path, leaf)
    del files["model"]["parameters"]
    files["model"]["tensors"][0].update(numel=10**6, shape=[1000, 1000])
    with pytest.raises(PlanError, match=words):
        planned(tmp_path, files)


@pytest.mark.parametrize("name", NAMES)
def test_deeply_nested_files(name: str, tmp_path: Path) -> None:
    folder = profile_files.write(tmp_path, **said())
    for text in ("[" * 100_000, '{"compressor": ' + '{"inner": ' * 900 + "1" + "}" * 901):
        (folder / NAMES[name]).write_text(text)
        with pytest.raises(PlanError, match="is no profile of a "):
            Inputs.read({name: folder / file for name, file in NAMES.items()})


@pytest.mark.parametrize("name", COMPRESSORS)
def test_settings_of_a_compressor(name: str, tmp_path: Path) -> None:
    """Each by itself, in the profile of a compressor and in a plan."""
    fields = [field.name for field in dataclasses.fields(COMPRESSORS[name])]
    for field, leaf in product(fields, [*ABSURD, {"name": "topk", "ratio": 10**400}]):
        settings = {"name": name, field: leaf}
        with suppress(PlanError):
            planned(tmp_path, put(said(), ("compressor", "compressor"), settings))
        (tmp_path / "plan.json").write_text(json.dumps({"version": 1, "default": {"compressor": settings}}))
        with suppress(PlanError):
            read_plan(tmp_path / "plan.json").default.built().wire(Layout.of((1024, 1024)))
