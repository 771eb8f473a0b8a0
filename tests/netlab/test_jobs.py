"""The network lab with real jobs on it. Bounds are physical: a busy machine makes a network slower, never faster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_compress import collectives
from hvd_compress.compressors import TopK
from hvd_compress.errors import CommunicationError, ConfigError
from hvd_compress.netlab import Lab, Link, Schedule, places
from hvd_compress.netlab.check import measure
from hvd_compress.netlab.places import running
from hvd_compress.netlab.relay import Relay
from hvd_compress.netlab.schedule import Change
from tests.jobs.launch import CHECKOUT
from tests.netlab.rights import require_lab

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 600.0
CROSSING = [sys.executable, str(PROGRAMS / "crossing.py")]
PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
SUM = """
from mpi4py import MPI
import numpy
ones = numpy.ones(500_000)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, ones)
print(int(ones.sum()))
"""
LAB = ["--hosts", "2", "--latency", "1ms", "--bandwidth", "100mbit"]


@pytest.fixture(scope="module", autouse=True)
def _rights() -> None:
    require_lab()


@pytest.fixture(scope="module")
def lab(_rights: None) -> Iterator[Lab]:
    with Lab(3, "20ms", "100mbit") as made:
        yield made


def run(lab: Lab, *program: str) -> subprocess.CompletedProcess[str]:
    return lab.run(program, timeout_s=LIMIT_S, **PIPES)


def said(lab: Lab, *program: str) -> list[str]:
    """Return what ranks have printed, without what mpirun may warn of, such as a lost race for setpgid."""
    return lab.run(program, timeout_s=LIMIT_S, **PIPES | {"stderr": None}).stdout.splitlines()


def cli(*words: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("hvd-compress")), "netlab", *words]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=_heed_sigint, **PIPES)


def _heed_sigint() -> None:
    """Which is ignored in all that a shell starts in the background, these tests too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_line(process: subprocess.Popen[str], words: str) -> str:
    for line in process.stdout or ():
        if words in line:
            return line
    raise AssertionError(f"the job ended without saying {words!r}")


def processes_of(name: str) -> list[str]:
    """Processes that belong to the lab, or whose environment names it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:  # it has just ended
            continue
        if name.encode() in words and folder.name != str(os.getpid()):
            found.append(words[:80].decode(errors="replace"))
    return found


def check_nothing_is_left(name: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (left := processes_of(name)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert name not in places.running()
    assert not places.socket_of(name).exists()


@pytest.mark.level1
def test_a_job_crosses_the_network(lab: Lab) -> None:
    job = run(lab, *CROSSING, "once")
    assert job.returncode == 0, job.stdout
    assert sorted(re.findall(r"rank (\d) of 3 on (\S+)", job.stdout)) == [
        (str(rank), f"{lab.name}-{rank + 1}") for rank in range(3)
    ]
    found = re.search(r"latency (\S+) transfer (\S+)", job.stdout)
    assert found, job.stdout
    assert float(found[1]) >= 0.020
    assert float(found[2]) >= 0.040 + 4e6 / 12.5e6
    assert lab.status().sent_bytes[0] >= 4_000_000
    assert lab.status().lost_frames == 0


@pytest.mark.level2
def test_collectives_that_heed_hosts_train() -> None:
    """Two ranks a host: what crosses the network are the payloads of one of them."""
    named = [name for name in collectives.names_for(TopK(0.1)) if collectives.by_name(name)]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    with Lab(2, "1ms", "1gbit", slots=2) as pairs:
        program = [sys.executable, str(PROGRAMS / "hosts.py"), *named]
        job = pairs.run(program, environment, LIMIT_S, **PIPES)
    assert job.returncode == 0, job.stdout
    found = re.findall(r"\[rank (\d)\] (\S+): equal (\S+), named (\S+), finite (\S+)", job.stdout)
    assert sorted(found) == sorted((str(r), collective, *["True"] * 3) for r in range(4) for collective in named), (
        job.stdout
    )


@pytest.mark.level2
def test_plain_sockets_cross_it_too(lab: Lab) -> None:
    figures = measure(lab, seconds=4.0)
    assert figures.idle_latency_s >= 0.020
    assert len(figures.bytes_per_s) == 3
    # Above it only by what was queued when measuring began: 6 MB at most, in the buffer of a socket.
    assert all(0 < rate < 1.2 * 12.5e6 for rate in figures.bytes_per_s)


@pytest.mark.level2
def test_the_exit_code_is_the_jobs(lab: Lab) -> None:
    assert run(lab, "sh", "-c", "exit $((OMPI_COMM_WORLD_RANK == 1 ? 7 : 0))").returncode == 7


@pytest.mark.level2
def test_jobs_that_end_at_once(lab: Lab) -> None:
    """Open MPI's launcher alone misses the end of one such job in ten or so, and hangs."""
    assert [run(lab, "true").returncode for _ in range(10)] == [0] * 10


@pytest.mark.level2
def test_a_program_that_is_not_there(lab: Lab) -> None:
    job = run(lab, "no-such-program")
    assert job.returncode == 127
    assert "cannot run no-such-program" in job.stdout


@pytest.mark.level2
def test_a_job_that_takes_too_long_is_ended(lab: Lab) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run(["sleep", "1000"], timeout_s=1.0, **PIPES)
    assert run(lab, "true").returncode == 0


@pytest.mark.level2
def test_the_network_changes_while_a_job_runs(lab: Lab) -> None:
    with Lab(2, "0ms", "100mbit", slots=1) as fast:
        job = fast.start([*CROSSING, "until", "0.05"], **PIPES)
        wait_for_line(job, "rank 1 of 2")
        fast.set(latency="50ms", host=2)
        wait_for_line(job, "it took as long")
        assert job.wait(LIMIT_S) == 0
        job.communicate()
        assert fast.status().links == (Link(0.0, 12.5e6), Link(0.05, 12.5e6))
    assert lab.status().links == 3 * (Link.parse("20ms", "100mbit"),)  # which ran beside it


@pytest.mark.level2
def test_a_job_may_change_its_own_network(lab: Lab) -> None:
    before = lab.status().links
    script = "[ $OMPI_COMM_WORLD_RANK = 1 ] || exec $0 netlab set --bandwidth 50mbit"
    job = run(lab, "sh", "-c", script, str(Path(sys.executable).with_name("hvd-compress")))
    assert job.returncode == 0, job.stdout
    assert lab.status().links == 3 * (Link.parse("20ms", "50mbit"),)
    lab.set(bandwidth="100mbit")
    assert lab.status().links == before


@pytest.mark.level2
def test_a_schedule_is_followed(lab: Lab) -> None:
    slow = Link.parse("30ms", "80mbit")
    schedule = Schedule("epoch", (Change(0, Link.parse("25ms", "90mbit")), Change(2, slow)))
    with lab.following(schedule, epoch_s=0.1):
        deadline = time.monotonic() + LIMIT_S
        while lab.status().links[0] != slow and time.monotonic() < deadline:
            time.sleep(0.02)
    assert lab.status().links == 3 * (slow,)
    lab.set("20ms", "100mbit")


@pytest.mark.level2
def test_set_for_a_host_that_is_not_there(lab: Lab) -> None:
    for host in (0, 4):
        with pytest.raises(ConfigError, match="hosts 1 to 3"):
            lab.set(latency="1ms", host=host)


@pytest.mark.level2
@pytest.mark.parametrize(("linux_tcp", "expected"), [(False, ["0", "initcwnd 10000"]), (True, ["1", "congctl cubic"])])
def test_tcp_leaves_lines_the_bottleneck_or_is_linuxs(linux_tcp: bool, expected: list[str]) -> None:
    look = "cat /proc/sys/net/ipv4/tcp_slow_start_after_idle; ip route | grep -o 'initcwnd [0-9]*\\|congctl [a-z]*'"
    with Lab(1, "1ms", "1gbit", linux_tcp=linux_tcp) as made:
        assert said(made, "sh", "-c", look) == expected


@pytest.mark.level2
def test_a_host_has_a_core_for_itself() -> None:
    cores = sorted(os.sched_getaffinity(0))
    look = "import os; print(os.uname().nodename.rpartition('-')[2], sorted(os.sched_getaffinity(0)))"
    with Lab(2, "1ms", "1gbit", own_cores=True) as made:
        assert sorted(said(made, sys.executable, "-c", look)) == [f"{host} [{cores[host - 1]}]" for host in (1, 2)]
    with pytest.raises(ConfigError, match=f"cannot have a core each on a machine of {len(cores)}"):
        Lab(len(cores) + 1, "1ms", "1gbit", own_cores=True)


@pytest.mark.level2
def test_what_is_lost_on_the_lines_is_sent_again() -> None:
    with Lab(2, "1ms", "100mbit", loss=0.02, jitter="1ms") as made:
        assert said(made, sys.executable, "-c", SUM) == ["1000000", "1000000"]
        assert made.status().dropped_frames > 0
    with pytest.raises(ConfigError, match="share of packets"):
        Lab(2, "1ms", "100mbit", loss=1.0)


@pytest.mark.level2
def test_two_labs_of_one_name(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="is running already"):
        Lab(1, "1ms", "1gbit", name=lab.name)


@pytest.mark.level2
def test_the_relay_is_killed() -> None:
    name = f"killed-{os.getpid()}"
    with Lab(2, "1ms", "1gbit", name=name) as lab:
        job = lab.start(["sh", "-c", "echo here; sleep 1000"], **PIPES)
        wait_for_line(job, "here")
        os.kill(lab._relay._process.pid, signal.SIGKILL)
        job.communicate(timeout=LIMIT_S)
        assert job.returncode == 128 + signal.SIGKILL
        with pytest.raises(CommunicationError, match=r"the relay .* ended with status -9"):
            lab.run(["true"])
    with pytest.raises(CommunicationError, match=r"the relay .* ended with status -9"):
        lab.run(["true"])  # closed by now, too
    check_nothing_is_left(name)


@pytest.mark.level2
def test_an_interrupt_while_a_lab_starts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Relay] = []

    def interrupted(self: Relay) -> None:
        started.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Relay, "_find_hosts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Lab(2, "1ms", "1gbit")
    assert started[0]._process.poll() is not None
    assert started[0].name not in running()


@pytest.mark.level2
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_the_launcher_is_ended(number: signal.Signals, status: int) -> None:
    name = f"ended-{os.getpid()}-{number}"
    process = cli("run", *LAB, "--name", name, "--", "sh", "-c", "echo here; sleep 1000")
    wait_for_line(process, "here")
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == status
    check_nothing_is_left(name)


@pytest.mark.level2
def test_from_the_command_line() -> None:
    process = cli("run", *LAB, "--slots", "2", "--", "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK; exit 5")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 5, output
    assert set(re.findall(r"rank (\d)", output)) <= set("0123")
    assert "rank" in output
