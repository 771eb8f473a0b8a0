"""Try the two commands as a new user does: in a bare Debian, without rights, with a given torch.

Needs root and debootstrap.

    python tools/first_hour.py torch==2.15.0 torch==2.4.0 --folder /var/tmp/first-hour
    python tools/first_hour.py torch==2.15.0 --debian forky --commands "make demo" "make wheel"    # Python 3.14

For each torch a Debian root of the variant minbase gets what the README names (make, g++, Python with venv and
headers, git) and a user, who clones this checkout's last commit into an empty home. `make demo` runs in one root after
the other, then `make test`. Times, outcomes and sizes go to the standard output as a table; the output of each command
to FOLDER. Namespaces of mounts and processes hold all of it: what is left are the files in FOLDER, which the next run
replaces.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ca-certificates", "make", "g++", "python3", "python3-venv", "python3-dev", "git")
MIRROR = "http://deb.debian.org/debian"
USER = "newcomer"
COMMANDS = ("make demo", "make test")
LIMIT_S = 5400
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PASSED_ON = ("PIP_", "SSL_", "REQUESTS_", "CURL_")
"""Beginnings of the variables by which this machine's package index is reached."""

ENTER = """
set -e
mount -t proc proc "$0/proc"
mount --rbind /sys "$0/sys"
mount --rbind /dev "$0/dev"
mount -t tmpfs shm "$0/dev/shm"
exec chroot "$0" su - "$1" -c "$2"
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("torch", nargs="+", help="a requirement for pip, such as torch==2.15.0")
    arguments.add_argument("--folder", type=Path, default=Path("/var/tmp/first-hour"))
    arguments.add_argument("--debian", default="bookworm", help="whose Python it is: 3.11 of bookworm, 3.13 of trixie")
    arguments.add_argument("--commands", nargs="*", default=COMMANDS, help="what to run instead of the two commands")
    asked = arguments.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("error: this needs root and debootstrap (Debian: apt install debootstrap)")
    asked.folder.mkdir(parents=True, exist_ok=True)
    base = _base(asked.folder, asked.debian)
    roots = {requirement: _root(base, requirement, asked.folder) for requirement in asked.torch}
    cells = {requirement: [requirement.removeprefix("torch==")] for requirement in roots}
    for command in asked.commands:
        for requirement, root in roots.items():
            cells[requirement].append(_try(root, requirement, command, asked.folder))
            print(f"{requirement}: {command}: {cells[requirement][-1]}", flush=True)
    for requirement, root in roots.items():
        home = root / "home" / USER
        cells[requirement] += [_size(home / "hvd_compress/.venv"), _size(home / ".cache")]
    print(f"\n| torch | {' | '.join(asked.commands)} | .venv | cache |")
    print("| --- |" + " ---: |" * (len(asked.commands) + 2))
    for row in cells.values():
        print(f"| {' | '.join(row)} |")
    sys.exit(any("failed" in cell for row in cells.values() for cell in row))


def _base(folder: Path, debian: str) -> Path:
    """Return a Debian with the packages that the README names, made by the first run."""
    base = folder / debian
    if not (base / "made").exists():
        shutil.rmtree(base, ignore_errors=True)
        # sid: the script of all releases, also of those that came behind this debootstrap
        words = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", debian, base, MIRROR, "sid"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["chroot", base, "useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)
        shutil.copy(CERTIFICATES, f"{base}{CERTIFICATES}")
        shutil.copy("/etc/resolv.conf", base / "etc/resolv.conf")
        (base / "made").touch()
    return base


def _root(base: Path, requirement: str, folder: Path) -> Path:
    """Return a copy of the Debian in which the user has a fresh clone."""
    root = folder / requirement
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "--archive", base, root], check=True)
    bundle = root / "home" / USER / "hvd_compress.bundle"
    subprocess.run(["git", "-C", ROOT, "bundle", "create", "--quiet", bundle, "HEAD"], check=True)
    if _run(root, "git clone -q hvd_compress.bundle hvd_compress", folder / f"{requirement}-clone.log"):
        sys.exit(f"error: the clone failed; see {folder / requirement}-clone.log")
    return root


def _try(root: Path, requirement: str, command: str, folder: Path) -> str:
    """Return the minutes that a command took, and whether it failed."""
    start = time.monotonic()
    log = folder / f"{requirement}-{command.replace(' ', '-')}.log"
    code = _run(root, f"cd hvd_compress && {command} TORCH_REQUIREMENT={requirement}", log)
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    return f"{minutes}:{seconds:02d}" + (f" failed ({code})" if code else "")


def _run(root: Path, command: str, log: Path) -> int:
    """Run a command as the user, in namespaces of its own, so that nothing that it starts outlives it."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    words = [f"export {name}={shlex.quote(value)};" for name, value in passed.items()]
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, root, USER]
    with log.open("w") as output:
        ran = subprocess.run(
            ["timeout", "--kill-after=10", str(LIMIT_S), *enter, " ".join([*words, command])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return ran.returncode


def _size(folder: Path) -> str:
    found = subprocess.run(["du", "-s", "--block-size=MB", folder], capture_output=True, text=True).stdout
    return f"{int(found.split('MB')[0]) / 1000:.1f} GB" if found else "none"


if __name__ == "__main__":
    main()
