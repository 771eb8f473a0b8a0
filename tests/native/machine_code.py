"""The machine code of the CUDA kernels, as nvdisasm prints it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

FUNCTION = re.compile(r"^\.text\.(\S+):\n(.*?)(?=^\.text\.|\Z)", re.MULTILINE | re.DOTALL)
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)\s*(.*?);|^(\.L_x_\d+):", re.MULTILINE)
LABEL = "label"
REGISTER = re.compile(r"\bR(\d+)\b")
NO_RESULT = ("ST", "RED", "ATOM", "BAR", "EXIT", "BRA")
WIDTHS = {8: (".64", 2), 16: (".128", 4)}
"""By the width of a load in bytes: the suffix of its opcode, and the registers that it fills."""


@dataclass(frozen=True)
class Function:
    """A kernel.

    Attributes:
        name: mangled.
        instructions: (opcode, operands), in the order of their addresses; LABEL where a branch may lead.
    """

    name: str
    instructions: list[tuple[str, str]]

    def loads_in_flight(self, width: int) -> int:
        """Return how many loads of `width` bytes from global memory follow each other before one is used, at most."""
        suffix, registers = WIDTHS[width]
        pending: set[int] = set()
        most = 0
        for opcode, operands in self.instructions:
            if opcode == LABEL:  # from elsewhere, nothing is under way
                pending = set()
            named = [int(number) for number in REGISTER.findall(operands)]
            is_load = opcode.startswith("LDG") and suffix in opcode
            used = named if opcode.startswith(NO_RESULT) else named[1:]
            if pending.intersection(used) or (named and not is_load and named[0] in pending):
                pending = set()
            if is_load:
                pending.update(range(named[0], named[0] + registers))
                most = max(most, len(pending) // registers)
        return most

    def touches_local_memory(self) -> bool:
        return any(opcode.startswith(("LDL", "STL")) for opcode, _ in self.instructions)


def functions(cubin: Path) -> Iterator[Function]:
    """Disassemble all kernels of a cubin."""
    text = subprocess.run([_nvdisasm(), "-c", cubin], capture_output=True, text=True, check=True).stdout
    for name, body in FUNCTION.findall(text):
        found = INSTRUCTION.findall(body)
        yield Function(name, [(LABEL, "") if label else (opcode, operands) for opcode, operands, label in found])


def _nvdisasm() -> Path:
    """Of the package nvidia-cuda-nvdisasm (requirements/dev.txt)."""
    package = find_spec("nvidia")
    assert package is not None
    found = [path for folder in package.submodule_search_locations or [] for path in Path(folder).rglob("bin/nvdisasm")]
    assert found, "nvidia-cuda-nvdisasm is not installed: make setup"
    return found[0]
