"""Which tests need a file, on small trees."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TREE = {
    "hvd_compress/__init__.py": "def metrics():\n    from hvd_compress.frontends import metrics",
    "hvd_compress/frontends.py": "",
    "hvd_compress/names.py": "",
    "hvd_compress/kinds/__init__.py": """
from hvd_compress.kinds.one import One
from hvd_compress.kinds.two import Two
ALL = {"one": One, "two": Two}
""",
    "hvd_compress/kinds/one.py": "from . import base\nif TYPE_CHECKING:\n    from hvd_compress import names",
    "hvd_compress/kinds/two.py": "def late():\n    from .base import Base",
    "hvd_compress/kinds/base.py": "",
    "hvd_compress/native/__init__.py": "from hvd_compress.native.sign import sign",
    "hvd_compress/native/sign.py": "from hvd_compress.native.module import on\non(1).sign_add()",
    "hvd_compress/native/module.py": "",
    "hvd_compress/cli/main.py": "",
    "hvd_compress/cli/plan.py": "",
    "hvd_compress/cli/list.py": "",
    "hvd_compress/guest/__init__.py": """
if TYPE_CHECKING:
    from hvd_compress.guest.part import Part
if not TYPE_CHECKING:
    from hvd_compress.kinds import one
""",
    "hvd_compress/guest/part.py": "",
    "hvd_compress/guest/cli/draw.py": "",
    "csrc/bindings/sign.cpp": '#include "hvd_compress/sign.hpp"\nmodule.def("sign_add", 0)',
    "csrc/bindings/topk.cpp": '#include "hvd_compress/topk.hpp"\nmodule.def("topk", 0)',
    "csrc/include/hvd_compress/sign.hpp": "",
    "csrc/include/hvd_compress/topk.hpp": "",
    "csrc/cpu/sign/kernels.cpp": '#include "../pool/pool.hpp"',
    "csrc/cpu/pool/pool.hpp": "",
    "csrc/cpu/pool/pool.cpp": "",
    "csrc/cuda/sign/launcher.cu": "",
    "docs/usage.md": "",
    "examples/train.py": "from parts.data import load",
    "examples/parts/data.py": "",
    "tools/fuzz.py": "import progress",
    "tools/progress.py": "",
    "tests/jobs/launch.py": "",
    "tests/jobs/programs/train.py": "import hvd_compress.names",
    "tests/conftest.py": "from tests.helper import help",
    "tests/helper.py": "",
}


@pytest.fixture
def closure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    import closure

    return closure


@pytest.mark.parametrize(
    ("test", "needed", "others"),
    [
        (
            "from hvd_compress.kinds import One",
            {"kinds/one.py", "kinds/base.py", "kinds/__init__.py", "__init__.py"},
            {"kinds/two.py", "names.py"},
        ),
        ("from hvd_compress.kinds import ALL", {"kinds/one.py", "kinds/two.py"}, set()),
        ("from hvd_compress import kinds\nkinds.Two()", {"kinds/two.py", "kinds/base.py"}, {"kinds/one.py"}),
        ("from hvd_compress import kinds\ndir(kinds)", {"kinds/one.py", "kinds/two.py"}, set()),
        ("from hvd_compress import metrics", {"frontends.py"}, {"names.py"}),
        ("'import hvd_compress.kinds.one as one'", set(), {"kinds/one.py"}),
        ("run('import hvd_compress.kinds.one as one')", {"kinds/one.py"}, {"kinds/two.py"}),
        ("from hvd_compress.cli.main import main\ncall(['plan', 'make'])", {"cli/plan.py"}, {"cli/list.py"}),
        ("from hvd_compress.cli.main import main\ncall(['draw'])", {"guest/cli/draw.py"}, {"cli/list.py"}),
        ("from hvd_compress.guest import Part", {"guest/part.py"}, {"guest/cli/draw.py", "kinds/one.py"}),
        ("import hvd_compress.guest", {"guest/__init__.py", "kinds/one.py"}, {"guest/part.py"}),
    ],
)
def test_what_a_test_needs_of_the_package(
    closure: ModuleType, tmp_path: Path, test: str, needed: set[str], others: set[str]
) -> None:
    found = needs(closure, tmp_path, test)
    assert {f"hvd_compress/{file}" for file in needed} <= found
    assert not {f"hvd_compress/{file}" for file in others} & found
    assert {"tests/conftest.py", "tests/helper.py"} <= found


@pytest.mark.parametrize(
    ("test", "needed", "others"),
    [
        (
            "from hvd_compress import native\nnative.sign()",
            {"csrc/cpu/sign/kernels.cpp", "csrc/cuda/sign/launcher.cu", "csrc/cpu/pool/pool.cpp"},
            {"csrc/bindings/topk.cpp"},
        ),
        ("ROOT / 'docs'", {"docs/usage.md"}, {"examples/train.py"}),
        ("run(EXAMPLES / 'train.py')", {"examples/train.py", "examples/parts/data.py"}, {"docs/usage.md"}),
        ("ROOT / 'examples'", set(), {"examples/train.py"}),
        ("(ROOT / 'examples').glob('*.py')", {"examples/train.py"}, {"docs/usage.md"}),
        ("import fuzz", {"tools/fuzz.py", "tools/progress.py"}, set()),
        (
            "from tests.jobs.launch import launch\nlaunch('mpirun', 'train')",
            {"tests/jobs/programs/train.py", "hvd_compress/names.py"},
            {"examples/train.py"},
        ),
    ],
)
def test_what_a_test_needs_besides(
    closure: ModuleType, tmp_path: Path, test: str, needed: set[str], others: set[str]
) -> None:
    found = needs(closure, tmp_path, test)
    assert needed <= found
    assert not others & found


def test_the_nearest_counts(closure: ModuleType, tmp_path: Path) -> None:
    texts = {
        "tests/test_one.py": "from hvd_compress.kinds.one import One",
        "tests/test_two.py": "import tests.test_one",
    }
    checkout = made(closure, tmp_path, texts)
    assert checkout.tests_of(["hvd_compress/kinds/one.py"]) == {"tests/test_one.py": 1, "tests/test_two.py": 2}
    assert checkout.tests_of(["hvd_compress/kinds/one.py", "tests/test_two.py"])["tests/test_two.py"] == 0
    assert checkout.tests_of(["hvd_compress/gone.py"]) == {}


def needs(closure: ModuleType, root: Path, test: str) -> set[str]:
    return set(made(closure, root, {"tests/test_it.py": test}).closure("tests/test_it.py"))


def made(closure: ModuleType, root: Path, texts: dict[str, str]) -> Any:
    for name, text in (TREE | texts).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return closure.Checkout(root, TREE | texts)
