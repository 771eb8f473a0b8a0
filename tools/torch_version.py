"""Which torch is supported, and which C++ standard the headers of the installed one need."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import progress

OLDEST = "2.4"
"""The oldest release that is supported; pyproject.toml and README.md say the same."""
STANDARDS = {"201703": 17, "202002": 20, "202302": 23}
"""C++ standards by the value of __cplusplus that torch's headers ask for."""
DEFAULT = Path(__file__).resolve().parent.parent / "requirements" / "torch.txt"
HEADER = Path("include/torch/csrc/api/include/torch/all.h")


def require_supported(release: str) -> None:
    """Raise StepError where `release`, such as "2.13.0+cpu", is older than what is supported."""
    if _numbers(release) < _numbers(OLDEST):
        raise progress.StepError(
            f"torch {release} is not supported: it is older than {OLDEST}; install a newer one "
            f"(pip install 'torch>={OLDEST}', or make setup without TORCH_REQUIREMENT)"
        )


def require_supported_pin(requirement: str) -> None:
    """Raise StepError where a requirement for pip pins a torch that is not supported; nothing was downloaded yet."""
    for pinned in re.findall(r"^torch(?:\[\w+\])?\s*===?\s*(\d[\d.]*\d|\d+)", requirement.strip()):
        require_supported(pinned)


def for_pip(requirement: str) -> list[str]:
    """Return what pip takes for a requirement, and for none for the default, which depends on the Python."""
    return [requirement] if requirement else ["-r", str(DEFAULT)]


def cxx_standard() -> int:
    """Return the C++ standard that programs with the installed torch's headers must be compiled with.

    Raises StepError where torch is not supported, or its headers do not say.
    """
    release = version("torch")
    require_supported(release)
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    header = Path(spec.origin).parent / HEADER
    found = re.search(r"__cplusplus < (\d{6})L", header.read_text()) if header.is_file() else None
    if found is None or found[1] not in STANDARDS:
        raise progress.StepError(
            f"torch {release} is not supported: {header} does not say which C++ standard it needs; choose an older "
            "torch, such as the one that the Makefile names"
        )
    return STANDARDS[found[1]]


def _numbers(release: str) -> tuple[int, ...]:
    """Return (2, 13) of "2.13.0+cpu": what a range is told by."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])
