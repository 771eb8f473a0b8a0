"""`hvd-compress plan` beside `plan check`, which tests/unit/policies/test_plan.py holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hvd_compress.cli.main import main
from hvd_compress.papers.espresso.options import Constraints, options
from hvd_compress.policies.plan_schema import read
from hvd_compress.profiler.profiles import ModelProfile
from hvd_compress.profiler.profiles import read as read_profile
from tests.papers.espresso.traced import traced
from tests.unit.profiler import profile_files


def run(*arguments: object) -> Result:
    """In a window in which few lines are broken."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["plan", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("", 4341),
        ("--devices 1", 174),
        ("--device training", 174),
        ("--device host", 174),
        ("--device training --device host", 4341),
        ("--devices 1 --max-compressions 0", 9),
        ("--only allreduce@all", 1),
    ],
)
def test_count_options(arguments: str, count: int) -> None:
    result = run("count-options", *arguments.split())
    assert result.output == f"{count}\n"


def test_options_are_listed_by_name() -> None:
    result = run("options", "--devices", 1, "--communication", "flat", "--max-compressions", 1)
    expected = options(Constraints(devices=("training",), hierarchical=False, most_compressions=1))
    assert result.output.splitlines() == list(map(str, expected))
    hierarchical = run("options", "--devices", 1, "--communication", "hierarchical", "--dense-within")
    assert all("within" in line and "*@within" not in line for line in hierarchical.output.splitlines())
    assert any("*@across" in line for line in hierarchical.output.splitlines())
    mixed = run("options", "--not-mixed", "--communication", "flat").output
    assert not any("@host" in line and "@training" in line for line in mixed.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--only allreduce@home", "unknown option 'allreduce@home'"),
        ("--only allreduce@home", "did you mean allreduce@all?"),
        ("--devices 1 --device host", "give one of them"),
        ("--devices 3", "3 is not in the range"),
        ("--communication flat --only reduce@within", "unknown option"),
        ("--max-compressions -1", "not in the range"),
    ],
)
def test_constraints_that_cannot_be(arguments: str, words: str) -> None:
    result = run("count-options", *arguments.split())
    assert result.exit_code == 2
    assert words in result.output


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return profile_files.write(tmp_path / "profile")


class TestMake:
    def test_a_directory(self, profile: Path, tmp_path: Path) -> None:
        files = [tmp_path / name for name in ("plan.json", "trace.json", "step.png")]
        result = run("make", profile, "-o", files[0], "--budget", 1, "--trace", files[1], "--picture", files[2])
        assert result.exit_code == 0, result.output
        plan = read(files[0])
        assert plan.prediction is not None
        assert plan.prediction.step_us < plan.prediction.dense_us
        said = f"predicted step {plan.prediction.step_us / 1e3:.3f} ms; without compression "
        assert f"{said}{plan.prediction.dense_us / 1e3:.3f} ms, " in result.output
        assert "names of its parameters alone" not in result.output
        for file in files:
            assert f"wrote {file}" in result.output.replace("\n", "")
        assert json.loads(files[1].read_text())["traceEvents"]
        assert files[2].read_bytes().startswith(b"\x89PNG")
        checked = run("check", files[0])
        assert checked.exit_code == 0
        assert said in checked.output

    def test_files_by_themselves(self, profile: Path, tmp_path: Path) -> None:
        out, other = tmp_path / "plan.json", tmp_path / "other.json"
        model = json.loads((profile / "model.json").read_text())
        other.write_text(json.dumps(model | {"tensors": model["tensors"][:2]}))
        assert run("make", profile, "--model", other, "-o", out, "--budget", 0).exit_code == 0
        assert len([name for entry in read(out).buckets for name in entry.parameters]) == 2
        named = [f"--{name}={profile / name}.json" for name in ("model", "system", "compressor")]
        assert run("make", *named, "-o", out, "--budget", 0).exit_code == 0
        missing = run("make", *named[:2], "-o", out)
        assert missing.exit_code == 2
        assert "or --compressor" in missing.output

    def test_constraints(self, profile: Path, tmp_path: Path) -> None:
        out = tmp_path / "plan.json"
        assert run("make", profile, "-o", out, "--max-compressions", 0, "--no-fusion").exit_code == 0
        plan = read(out)
        assert {entry.compressor["name"] for entry in plan.buckets} == {"cast"}
        assert [len(entry.parameters) for entry in plan.buckets] == [1] * 5
        assert run("make", profile, "-o", out, "--engine", "horovod").exit_code == 0
        assert not any("within" in (entry.option or "") for entry in read(out).buckets)

    def test_the_engine_is_that_of_the_profile(self, profile: Path, tmp_path: Path) -> None:
        out, system = tmp_path / "plan.json", profile / "system.json"

        def made(*arguments: str) -> tuple[str | None, str]:
            done = run("make", profile, "-o", out, "--budget", 0, *arguments)
            assert done.exit_code == 0, done.output
            return read(out).engine, done.output

        engine, said = made()
        assert engine is None, "a person wrote it"
        assert "options can be run over engine mpi; found by" in said
        most = int(said.partition(" options can be run")[0].split()[-1])
        system.write_text(json.dumps(json.loads(system.read_text()) | {"engine": "horovod"}))
        engine, said = made()
        assert engine == "horovod"
        assert int(said.partition(" options can be run over engine horovod")[0].split()[-1]) < most
        assert "the network was measured over" not in said
        engine, said = made("--engine", "mpi")
        assert engine == "mpi"
        assert f"{most} options can be run over engine mpi" in said
        assert "the network was measured over engine horovod: times over mpi may be others" in said

    def test_why_is_a_table_of_ten_and_the_rest(self, tmp_path: Path) -> None:
        shapes = {f"layer{n:02}.weight[/]": (40, 10 * n + 1) for n in range(14)}
        folder = profile_files.write(tmp_path / "profile", **profile_files.said(shapes=shapes))
        result = run("make", folder, "-o", tmp_path / "plan.json", "--no-fusion", "--budget", 0.5)
        assert result.exit_code == 0, result.output
        assert sum("layer" in line for line in result.output.splitlines()) == 10
        assert "4 more" in result.output

    def test_bad_files(self, profile: Path, tmp_path: Path) -> None:
        result = run("make", tmp_path / "none", "-o", tmp_path / "plan.json")
        assert result.exit_code == 2
        assert "none/model.json: `hvd-compress profile` writes it" in result.output
        (profile / "system.json").write_text("{}")
        result = run("make", profile, "-o", tmp_path / "plan.json")
        assert result.exit_code == 2
        assert "hosts: is missing" in result.output
        assert not (tmp_path / "plan.json").exists()


class TestCompare:
    @pytest.fixture
    def plan(self, profile: Path, tmp_path: Path) -> Path:
        out = tmp_path / "plan.json"
        assert run("make", profile, "-o", out, "--budget", 0.5, "--no-fusion").exit_code == 0
        return out

    def rows(self, output: str) -> dict[str, list[float]]:
        lines = [line.split() for line in output.splitlines() if line.strip() and line.split()[-1][0].isdigit()]
        return {line[0].rstrip(","): [float(word) for word in line[-3:]] for line in lines if len(line) > 3}

    def test_terms_are_told_apart(self, plan: Path, profile: Path, tmp_path: Path) -> None:
        timeline = traced(tmp_path / "t.json", read(plan))
        picture = tmp_path / "both.png"
        result = run("compare", plan, timeline, "--picture", picture)
        assert result.exit_code == 0, result.output
        assert picture.read_bytes().startswith(b"\x89PNG")
        rows = self.rows(result.output)
        model = read_profile(profile / "model.json", ModelProfile)
        computed = (model.forward_us + sum(tensor.backward_us for tensor in model.tensors)) / 1e3
        assert rows["computation"][:2] == [pytest.approx(computed), pytest.approx(30, abs=0.01)]
        assert rows["compression"][1] == pytest.approx(5 * 1, abs=0.03)
        assert rows["communication"][1] == pytest.approx(5 * 2, abs=0.03)
        prediction = read(plan).prediction
        assert prediction is not None
        assert rows["step"][:2] == [pytest.approx(prediction.step_us / 1e3, abs=1e-3), pytest.approx(60, abs=0.01)]
        assert rows["step"][2] == pytest.approx(60 / rows["step"][0], rel=0.01)
        assert "most wrong is computation, 29.8" in result.output

    def test_a_predicted_trace_is_no_run(self, plan: Path, profile: Path, tmp_path: Path) -> None:
        trace = tmp_path / "trace.json"
        assert run("make", profile, "-o", tmp_path / "other.json", "--budget", 0, "--trace", trace).exit_code == 0
        result = run("compare", plan, trace)
        assert result.exit_code == 2
        assert "is no timeline of a run: it is another Chrome trace" in " ".join(result.output.split())

    @pytest.mark.parametrize(
        ("changed", "arguments", "words"),
        [
            ({"steps": 1}, (), "there is no step but step 0"),
            ({"names": ["other"]}, (), "no step has the 5 buckets of the plan, 'first.bias' is missing"),
            ({}, ("--step", 7, "--picture", "x.png"), "step 7 is not in it, or has other buckets; there are [1, 2]"),
        ],
    )
    def test_what_does_not_fit(
        self, changed: dict[str, Any], arguments: tuple[Any, ...], words: str, plan: Path, tmp_path: Path
    ) -> None:
        timeline = traced(tmp_path / "t.json", read(plan), **changed)
        result = run("compare", plan, timeline, *arguments)
        assert result.exit_code == 2
        assert words in " ".join(result.output.split())

    def test_rows_of_an_embedding_are_none_of_the_plan(self, plan: Path, tmp_path: Path) -> None:
        own = [entry.parameters[0] for entry in read(plan).buckets]
        timeline = traced(tmp_path / "t.json", read(plan), names=["embedding.weight", *own])
        result = run("compare", plan, timeline)
        assert result.exit_code == 0, result.output
        assert self.rows(result.output)["communication"][1] == pytest.approx(5 * 2, abs=0.03)

    def test_the_run_of_another_plan(self, plan: Path, tmp_path: Path) -> None:
        result = run("compare", plan, traced(tmp_path / "t.json", read(plan), candidate="star-ring"))
        assert result.exit_code == 2
        assert "travelled by 'star-ring', and by '" in " ".join(result.output.split())

    def test_another_profile(self, plan: Path, profile: Path, tmp_path: Path) -> None:
        """Times that have changed are told of; another compressor or number of ranks is refused."""
        timeline = traced(tmp_path / "t.json", read(plan))
        assert "another prediction" not in run("compare", plan, timeline).output
        for name, change, words in (
            ("model", {"forward_us": 1e6}, "the plan was made with another prediction, "),
            ("compressor", {"compressor": {"name": "topk", "ratio": 0.051}}, "pass the profile that the plan was made"),
            ("system", {"hosts": 4}, "the plan is for 4 ranks, and "),
        ):
            file = profile / f"{name}.json"
            before = file.read_text()
            file.write_text(json.dumps(json.loads(before) | change))
            result = run("compare", plan, timeline)
            file.write_text(before)
            assert words in " ".join(result.output.split()), result.output
            assert result.exit_code == (0 if name == "model" else 2)

    def test_a_plan_by_hand_needs_a_profile(self, plan: Path, profile: Path, tmp_path: Path) -> None:
        timeline = traced(tmp_path / "t.json", read(plan))
        said = json.loads(plan.read_text())
        del said["prediction"]
        plan.write_text(json.dumps(said))
        result = run("compare", plan, timeline)
        assert result.exit_code == 2
        assert "pass --profile DIR" in result.output
        assert run("compare", plan, timeline, "--profile", profile).exit_code == 0


def test_files_of_two_runs_are_no_profile(tmp_path: Path) -> None:
    """As a run leaves them that was killed while it replaced those of another. Named by themselves, they are two."""
    said = profile_files.said()
    files = {name: said[name] | {"run": run} for name, run in (("model", "a"), ("system", "b"), ("compressor", "b"))}
    folder = profile_files.write(tmp_path / "profile", **files)
    done = run("make", folder, "-o", tmp_path / "plan.json", "--budget", 0)
    assert done.exit_code == 2, done.output
    assert (
        f"{folder / 'model.json'} and system.json beside it are of different runs, a and b: profile again"
        in done.output
    )
    other = profile_files.write(tmp_path / "other", **files)
    done = run("make", folder, "--model", other / "model.json", "-o", tmp_path / "plan.json", "--budget", 0)
    assert done.exit_code == 0, done.output
