"""`hvd-compress profile`, with programs that pretend to be a training."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hvd_compress.cli.main import main
from hvd_compress.papers.espresso.cli import descendants
from hvd_compress.papers.espresso.profiler.folder import RUN, Claim
from tests.unit.cli.test_hostile_files import TEXTS, require_refusal

pytestmark = pytest.mark.level2

LIMIT_S = 600.0
"""Only what hangs takes so long."""
WRITES = """
import os, sys, time
from pathlib import Path
from hvd_compress.profiler.profiles import COMPRESSOR, MODEL, SYSTEM, CompressorProfile, ModelProfile, write
from hvd_compress.papers.espresso.profiler.folder import RUN, Claim
from hvd_compress.papers.espresso.profiler.settings import command_run
folder = Path(os.environ["HVD_COMPRESS_PROFILE"])
times = {"numel": [1, 1000], "us": [10.0, 20.0]}
compressor = {"compressor": {"name": "topk", "ratio": 0.01}, "payload": {"per_element_bytes": 0.08}}
devices = {"training": {"compress": times, "decompress": times}}
tensors = [{"name": "weight", "numel": 2000, "backward_us": 1500.0}]
with Claim(folder, RUN, command_run()) as claim:
    (folder / SYSTEM).unlink(missing_ok=True)
    write(folder / COMPRESSOR, CompressorProfile(**compressor, devices=devices, run=claim.run))
    write(folder / MODEL, ModelProfile(model="played", tensors=tensors, steps=7, forward_us=2500.0, run=claim.run))
"""
"""A training that writes a profile, as profiler/job.py does, without torch, which takes seconds to import."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["profile", *arguments])


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def test_the_program_sees_what_was_asked_for(tmp_path: Path) -> None:
    code = f"import json, os; open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps(dict(os.environ)))"
    options = ["--steps", "7", "--skip", "0", "--compressor", "topk:ratio=0.1", "-o", os.path.relpath(tmp_path / "a")]
    run(*options, *python(code))
    seen = json.loads((tmp_path / "seen").read_text())
    found = {name.removeprefix("HVD_COMPRESS_"): value for name, value in seen.items() if "HVD_COMPRESS_PRO" in name}
    assert re.fullmatch("[0-9a-f]{12}", found.pop("PROFILE_RUN"))
    assert found == {
        "PROFILE": str(tmp_path / "a"),
        "PROFILE_STEPS": "7",
        "PROFILE_SKIP": "0",
        "PROFILE_COMPRESSOR": "topk:ratio=0.1",
    }


def test_what_was_found_is_said(tmp_path: Path) -> None:
    done = run("-o", str(tmp_path), *python(WRITES))
    assert done.exit_code == 0
    assert "model.json: 1 tensors, 2,000 elements, 7 steps; forward 2.5 ms, backward 1.5 ms" in done.output
    assert "compressor.json: topk, training: compress 0.03 ms, decompress 0.03 ms for 2,000 elements" in done.output
    assert "system.json" not in done.output


def test_the_network_of_an_earlier_job_is_none_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "system.json").write_text("{}")
    assert run("-o", str(tmp_path), *python(WRITES)).exit_code == 0
    assert not (tmp_path / "system.json").exists()


@pytest.mark.parametrize(("deviation_us", "is_warned"), [(1400.0, False), (1600.0, True)])
def test_times_that_vary_by_more_than_they_are(tmp_path: Path, deviation_us: float, is_warned: bool) -> None:
    varying = WRITES.replace('"backward_us": 1500.0', f'"backward_us": 1500.0, "backward_us_sd": {deviation_us}')
    done = run("-o", str(tmp_path), *python(varying))
    assert done.exit_code == 0
    assert ("vary by more than they are" in done.output) == is_warned


def test_the_exit_code_of_the_program_is_passed_on(tmp_path: Path) -> None:
    assert run("-o", str(tmp_path), *python(WRITES + "sys.exit(7)")).exit_code == 7
    done = run("-o", str(tmp_path), *python("import sys; sys.exit(7)"))
    assert done.exit_code == 7
    assert "Error: no profile: PROGRAM ended with exit code 7 after 0 of 110 steps" in done.output
    assert "HVD_COMPRESS_PROFILE" not in done.output


def test_a_program_that_trains_nothing_gives_no_profile(tmp_path: Path) -> None:
    done = run("-o", str(tmp_path), *python("pass"))
    assert done.exit_code == 2
    assert "no profile: 0 of 110 steps were seen: no optimizer of hvd_compress.torch" in done.output
    assert "-x HVD_COMPRESS_PROFILE_STEPS" in done.output


def test_a_training_that_ends_too_early_is_told_so(tmp_path: Path) -> None:
    tells = f"open({str(tmp_path / 'progress.json')!r}, 'w').write('{{\"steps\": 37, \"of\": 110}}')"
    done = run("-o", str(tmp_path), *python(tells))
    assert done.exit_code == 2
    assert "no profile: 37 of 110 steps were seen: train longer, or pass smaller --steps and --skip" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"steps": 0, "of": 110}, "0 of 110 steps were seen: train longer"),
        ({"steps": 110, "of": 110}, "110 of 110 steps were seen, and PROGRAM ended before compressor and network were"),
        ({"steps": 110, "of": 110, "obstacle": "rank 1 has no room"}, "110 of 110 steps were seen: rank 1 has no room"),
        ([], "0 of 110 steps were seen: no optimizer"),
    ],
)
def test_why_there_is_no_profile(said: object, words: str, tmp_path: Path) -> None:
    tells = f"open({str(tmp_path / 'progress.json')!r}, 'w').write({json.dumps(said)!r})"
    done = run("-o", str(tmp_path), *python(tells))
    assert done.exit_code == 2
    assert f"no profile: {words}" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_any_more_is_told(tmp_path: Path) -> None:
    """It is replaced by a file while PROGRAM trains, which root cannot write into either."""
    folder = tmp_path / "profile"
    code = f"import shutil; shutil.rmtree({str(folder)!r}); open({str(folder)!r}, 'w')"
    done = run("-o", str(folder), *python(code))
    assert done.exit_code == 2
    assert f"the folder {folder} cannot be written any more (Not a directory): name another with -o" in done.output
    assert "train longer" not in done.output


def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    """The program of the first one is the second one."""
    command = [sys.executable, "-c", "from hvd_compress.cli.main import main; main()"]
    again = [*command, "profile", "-o", str(tmp_path / "profile"), "--", "touch", str(tmp_path / "ran")]
    code = f"""
import subprocess
done = subprocess.run({again!r}, capture_output=True, text=True)
open({str(tmp_path / "told")!r}, "w").write(f"{{done.returncode}} {{done.stderr}}")
"""
    done = run("-o", str(tmp_path / "profile"), *python(code + WRITES))
    assert done.exit_code == 0, done.output
    told = (tmp_path / "told").read_text()
    assert told.startswith("2 ")
    assert f"another profile is recorded into the folder {tmp_path / 'profile'}, by process {os.getpid()} on" in told
    assert not (tmp_path / "ran").exists()


def test_a_job_that_records_into_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("of the job")
    with Claim(tmp_path, RUN):
        done = run("-o", str(tmp_path), *python(f"open({str(tmp_path / 'ran')!r}, 'w')"))
        assert done.exit_code == 2
        assert "another profile is recorded into the folder" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]


def test_a_job_that_this_command_has_not_started_is_refused_the_folder(tmp_path: Path) -> None:
    """Its files would be taken for those of PROGRAM."""
    code = f"""
import os, subprocess, sys
del os.environ["HVD_COMPRESS_PROFILE_RUN"]
done = subprocess.run([sys.executable, "-c", {WRITES!r}], capture_output=True, text=True)
open({str(tmp_path / "told")!r}, "w").write(done.stderr)
"""
    done = run("-o", str(tmp_path / "profile"), *python(code))
    assert done.exit_code == 2
    assert "no profile: 0 of 110 steps were seen" in done.output
    assert "another profile is recorded into the folder" in (tmp_path / "told").read_text()
    assert list((tmp_path / "profile").iterdir()) == []


def test_files_of_another_run_are_no_profile_of_this_one(tmp_path: Path) -> None:
    """As on a file system without locks."""
    code = WRITES.replace("Claim(folder, RUN, command_run())", "Claim(folder.parent / 'other', RUN)")
    moves = 'for path in (folder.parent / "other").iterdir():\n    path.replace(folder / path.name)\n'
    done = run("-o", str(tmp_path / "profile"), *python(code + moves))
    assert done.exit_code == 2
    assert f"another run has written into the folder {tmp_path / 'profile'}: name another with -o" in done.output


def test_a_script_whose_second_job_is_short_has_the_profile_of_the_first(tmp_path: Path) -> None:
    code = WRITES + f"open({str(tmp_path / 'progress.json')!r}, 'w').write('{{\"steps\": 1, \"of\": 110}}')"
    done = run("-o", str(tmp_path), *python(code))
    assert done.exit_code == 0, done.output
    assert "model.json: 1 tensors" in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compressor.json", "model.json"]


def test_files_of_an_earlier_run_are_no_profile_of_this_one(tmp_path: Path) -> None:
    assert run("-o", str(tmp_path), *python(WRITES)).exit_code == 0
    before = (tmp_path / "model.json").read_text()
    assert run("-o", str(tmp_path), *python("pass")).exit_code == 2
    assert (tmp_path / "model.json").read_text() == before


def test_the_program_is_ended_where_that_was_asked_for(tmp_path: Path) -> None:
    """At once, though it would sleep for an hour, and though it does not end well."""
    code = WRITES + f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(3600)"
    done = run("--stop", "-o", str(tmp_path / "profile"), *python(code))
    assert done.exit_code == 0, done.output
    assert "model.json: 1 tensors" in done.output
    pid = tmp_path / "pid"
    if pid.exists():
        assert not Path("/proc", pid.read_text()).exists()


def test_the_lock_of_a_program_that_was_ended_is_removed(tmp_path: Path) -> None:
    holds = "from hvd_compress.papers.espresso.profiler.folder import RUN, Claim\nimport os\nfrom pathlib import Path\n"
    holds += "path = Path(os.environ['HVD_COMPRESS_PROFILE'])\n"
    holds += "Claim(path, RUN, os.environ['HVD_COMPRESS_PROFILE_RUN'])\nassert (path / RUN).exists()\nos._exit(0)"
    run("-o", str(tmp_path), *python(holds))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compressor", "gzip"], "unknown compressor 'gzip'"),
        (["--compressor", "itn4"], "unknown compressor 'itn4'; did you mean int4?"),
        (["--compressor", "powersgd:rank=2"], "profile another compressor"),
        (["--steps", "0"], "--steps"),
        (["--skip", "-1"], "--skip"),
        (["--steps", "10000000000000000000"], "--steps"),
    ],
)
def test_bad_options_are_refused_before_the_program_runs(arguments: list[str], words: str, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'seen')!r}, 'w')"
    done = run(*arguments, "-o", str(tmp_path / "profile"), *python(code))
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "seen").exists()


def test_a_name_that_list_prints_is_one_that_the_program_gets(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'seen')!r}, 'w').write(os.environ['HVD_COMPRESS_PROFILE_COMPRESSOR'])"
    run("--compressor", "int4:block=128", "-o", str(tmp_path / "profile"), *python(f"import os; {code}"))
    assert (tmp_path / "seen").read_text() == "int4:block=128"


def test_no_program_and_no_folder(tmp_path: Path) -> None:
    assert run("-o", str(tmp_path)).exit_code == 2
    done = run("-o", str(tmp_path), "--", "/no/such/program")
    assert done.exit_code == 2
    assert "cannot run '/no/such/program': No such file" in done.output
    (tmp_path / "file").touch()
    done = run("-o", str(tmp_path / "file" / "profile"), *python("pass"))
    assert done.exit_code == 2
    assert "cannot write to the folder" in done.output


def test_what_a_script_has_started_ends_with_it(tmp_path: Path) -> None:
    """A shell that is ended passes nothing on; what it waits for would train on."""
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()))\n{WRITES}\ntime.sleep(3600)"
    script = tmp_path / "train.sh"
    script.write_text(f"{shlex.join(python(code)[1:])}\necho later\n")
    done = run("--stop", "-o", str(tmp_path), "--", "bash", str(script))
    assert done.exit_code == 0, done.output
    assert int(pid.read_text()) not in descendants._parents()


def test_who_ends_the_command_ends_the_program(tmp_path: Path) -> None:
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()) + ' '); time.sleep(3600)"
    command = [sys.executable, "-c", "from hvd_compress.cli.main import main; main()", "profile"]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "profile"), *python(code)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT_S
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text().endswith(" ")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (tmp_path / "profile" / "progress.json").touch()
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert list((tmp_path / "profile").iterdir()) == []
    assert not Path("/proc", pid.read_text().strip()).exists()


@pytest.mark.parametrize("option", [("--compressor", "int4"), ("-o", "there")])
def test_what_a_ratio_has_no_use_for_is_refused(option: tuple[str, str], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    result = run("--ccr", *option, *python(f"open({str(ran)!r}, 'w')"))
    assert result.exit_code == 2
    assert "--ccr" in result.stderr
    assert not ran.exists()


@pytest.mark.parametrize("file", ["progress.json", "model.json"])
def test_what_a_program_leaves_in_the_folder(file: str, tmp_path: Path) -> None:
    for text in filter(None, TEXTS.values()):
        (tmp_path / "text").write_bytes(text)
        done = run("-o", str(tmp_path / "p"), "--", "cp", str(tmp_path / "text"), str(tmp_path / "p" / file))
        require_refusal(done, Path("no profile: 0 of 110 steps were seen"))
        shutil.rmtree(tmp_path / "p")
