"""Where labs are to be found: a socket for each, in one folder that only root reads."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from hvd_compress.errors import CommunicationError, ConfigError

FOLDER = Path("/run/hvd_compress/netlab")
NAME_VARIABLE = "HVD_COMPRESS_NETLAB"
"""In the environment of a job: the lab that it runs in."""

_TIMEOUT_S = 10.0


def socket_of(name: str) -> Path:
    return FOLDER / f"{name}.socket"


def running() -> list[str]:
    """Names of the labs that run. What dead ones left behind is removed. Raises ConfigError for who is not root."""
    if FOLDER.exists() and not os.access(FOLDER, os.R_OK | os.X_OK):
        raise ConfigError(f"only root may see and change labs ({FOLDER}): run it as root")
    names = []
    for path in sorted(FOLDER.glob("*.socket")):
        try:
            ask(path.stem, "show")
        except ConfigError:
            path.unlink(missing_ok=True)
        except CommunicationError:
            continue  # it is just ending
        else:
            names.append(path.stem)
    return names


def find(name: str | None) -> str:
    """The lab `name`; without a name that of this job, or the only one. Raises ConfigError where none is meant."""
    name = name or os.environ.get(NAME_VARIABLE)
    labs = running()
    if name is None and len(labs) == 1:
        return labs[0]
    if name is None and labs:
        raise ConfigError(f"several labs run ({', '.join(labs)}): name one with --lab")
    if name is None:
        raise ConfigError("no lab runs here: start one with `hvd-compress netlab run`")
    if name not in labs:
        raise ConfigError(f"there is no lab {name!r}: {', '.join(labs) + ' run here' if labs else 'none runs here'}")
    return name


def ask(name: str, order: str) -> str:
    """Send an order to the relay of a lab, and return its answer.

    Raises ConfigError where the lab does not exist or refuses, CommunicationError where it does not answer.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as client:
        client.settimeout(_TIMEOUT_S)
        try:
            client.connect(str(socket_of(name)))
            client.send(order.encode())
            answer = client.recv(65536).decode()
        except PermissionError:
            raise ConfigError(f"only root may talk to the lab {name!r}") from None
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
                raise ConfigError(f"there is no lab {name!r}") from None
            raise CommunicationError(f"the relay of the lab {name!r} does not answer: {error}") from None
    if answer.startswith("error: "):
        raise ConfigError(answer.removeprefix("error: "))
    if not answer:
        raise CommunicationError(f"the relay of the lab {name!r} has ended")
    return answer
