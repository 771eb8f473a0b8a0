"""The images: in step with what is pinned elsewhere, free of root, and ending with the tests that say they work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from hvd_compress import __version__

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())


def instructions(file: Path, kind: str | None = None, stage: int | None = None) -> list[str]:
    """The values of the instructions of one kind, or of all, in one stage, or in all."""
    number, values = -1, []
    for entry in DockerfileParser(str(file), env_replace=False).structure:
        number += entry["instruction"] == "FROM"
        wanted = kind in (None, entry["instruction"]) and entry["instruction"] != "COMMENT"
        if wanted and stage in (None, number):
            values.append(entry["value"])
    return values


def last_stage(file: Path) -> int:
    return len(instructions(file, "FROM")) - 1


def pins(name: str) -> dict[str, str]:
    """Package -> version, for the Python of the images, 3.11."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return dict(re.findall(r"(?m)^([\w.-]+)==(\S+)(?!.*python_version <)", "\n".join(lines)))


def torch_of(file: Path) -> str:
    """The release of torch in an image."""
    (argument,) = (value for value in instructions(file, "ARG") if value.startswith("TORCH_REQUIREMENT="))
    return argument.removeprefix("TORCH_REQUIREMENT=torch==").removesuffix("+cpu")


def test_there_are_two() -> None:
    assert [file.stem for file in DOCKERFILES] == ["cpu", "gpu"]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
class TestDockerfile:
    @pytest.mark.level2
    def test_linter_finds_nothing(self, file: Path) -> None:
        linter = Path(sys.executable).with_name("hadolint")
        command = [linter, "--failure-threshold", "style", "--config", FOLDER / "hadolint.yaml", file]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr

    def test_base_is_pinned_by_tag_and_digest(self, file: Path) -> None:
        (base,) = (value for value in instructions(file, "ARG") if value.startswith("BASE="))
        assert re.fullmatch(r"BASE=debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", base)
        stages = {words[2] for words in map(str.split, instructions(file, "FROM"))}
        assert {words[0] for words in map(str.split, instructions(file, "FROM"))} <= {"${BASE}"} | stages

    def test_versions_are_those_of_the_project(self, file: Path) -> None:
        pip = re.search(r'(?m)^PIP = "(\S+)"$', (ROOT / "tools" / "setup_env.py").read_text())
        assert pip is not None
        # All else comes from requirements/, so nothing but pip and torch may name a version here.
        named = {word for value in instructions(file, "RUN") for word in re.findall(r"\S+==\S+", value)}
        assert named == {pip[1]}

    def test_torch_is_supported_and_the_one_of_both_images(self, file: Path) -> None:
        """Not the default of set-up: each image is built and tried with its torch, whose CUDA cuda.txt fits."""
        oldest = re.search(r'(?m)^OLDEST = "([\d.]+)"$', (ROOT / "tools" / "torch_version.py").read_text())
        newest = re.search(r"(?m)^torch==([\d.]+)", (ROOT / "requirements" / "torch.txt").read_text())
        assert oldest is not None
        assert newest is not None
        found = {torch_of(other) for other in DOCKERFILES}
        assert len(found) == 1
        numbers = [tuple(map(int, release.split("."))) for release in (oldest[1], *found, newest[1])]
        assert numbers == sorted(numbers)
        assert torch_of(file) in (ROOT / "docker" / "README.md").read_text()

    def test_what_builds_horovod_is_there(self, file: Path) -> None:
        """The installer, and each of our modules that it needs."""
        (line,) = (value for value in instructions(file, "COPY") if "tools/install_horovod.py" in value)
        copied = {Path(word).stem for word in line.split() if word.endswith(".py")}
        for name in sorted(copied):
            imported = re.findall(r"(?m)^import (\w+)$", (ROOT / "tools" / f"{name}.py").read_text())
            assert {module for module in imported if (ROOT / "tools" / f"{module}.py").exists()} <= copied

    def test_packages_are_those_of_the_project(self, file: Path) -> None:
        (line,) = (value for value in instructions(file, "RUN") if "-c requirements/dev.txt" in value)
        packages = set(line.split("-c requirements/dev.txt")[1].split())
        assert packages <= set(pins("dev.txt"))
        needed = re.search(r"(?m)^dependencies = \[(.*)\]$", (ROOT / "pyproject.toml").read_text())
        assert needed is not None
        assert set(re.findall(r"[a-z][\w-]+", needed[1])) - {"torch"} <= packages

    def test_what_is_copied_exists_and_reaches_the_engine(self, file: Path) -> None:
        allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        for value in instructions(file, "COPY"):
            sources = [word for word in value.split() if not word.startswith("--")][:-1]
            if "--from=" in value:
                continue
            for source in sources:
                assert (ROOT / source).exists()
                assert source == "." or Path(source).parts[0] in allowed

    def test_dependencies_come_before_sources(self, file: Path) -> None:
        steps = instructions(file)
        assert steps.index(next(step for step in steps if step.endswith(" . ."))) > max(
            number for number, step in enumerate(steps) if "requirements/" in step or "install_horovod.py" in step
        )

    def test_ends_as_a_user_with_smoke_test_and_doctor(self, file: Path) -> None:
        stage = last_stage(file)
        assert instructions(file, "USER", stage) == ["1000:1000"]
        *_, smoke, doctor = instructions(file, stage=stage)
        assert smoke.startswith("mpirun -np 2 ")
        assert smoke.endswith("python docker/smoke_test.py")
        assert doctor == "hvd-compress doctor"

    def test_image_is_named_after_the_version(self, file: Path) -> None:
        assert f"-t hvd-compress:{__version__}-{file.stem} ." in file.read_text()


def test_cuda_is_the_one_of_torch() -> None:
    """All from one release of CUDA; the compiler's three parts must fit to the digit."""
    cuda = pins("cuda.txt")
    assert len({cuda[name] for name in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")}) == 1
    assert {version.rpartition(".")[0] for name, version in cuda.items() if "nccl" not in name} == {"13.0"}


def test_everything_in_dockerignore_exists() -> None:
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        assert not line.startswith("!") or (ROOT / line[1:]).exists()


class TestCompose:
    def test_runs_the_image_of_this_version(self) -> None:
        services = COMPOSE["services"].values()
        assert {service["image"] for service in services} == {f"hvd-compress:{__version__}-cpu"}
        assert {service["build"]["dockerfile"] for service in services} == {"docker/cpu.Dockerfile"}
        assert (FOLDER / COMPOSE["services"]["one"]["build"]["context"]).resolve() == ROOT

    def test_both_hosts_run_ranks_and_have_keys(self) -> None:
        hosts = {"one", "two"}
        assert {service.get("hostname") for service in COMPOSE["services"].values()} - {None} == hosts
        assert set(COMPOSE["services"]["keys"]["command"][1:]) == hosts
        for flags in ("MPIRUN_FLAGS", "HOROVODRUN_FLAGS"):
            (pair,) = re.findall(r"\S+:\d+,\S+:\d+", COMPOSE["services"]["one"]["environment"][flags])
            assert {host.partition(":")[0] for host in pair.split(",")} == hosts

    def test_nothing_is_published_or_privileged(self) -> None:
        for service in COMPOSE["services"].values():
            assert not {"ports", "privileged", "cap_add", "user"} & set(service)
