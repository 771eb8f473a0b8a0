"""An environment in which the package is installed, and beside it a checkout whose kernels were not built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import hvd_compress

PACKAGE = Path(hvd_compress.__file__).parent


@dataclass(frozen=True)
class Installed:
    """Folders of both copies of the package, and the environment's Python."""

    checkout: Path
    package: Path
    python: Path

    def run(self, *arguments: object) -> str:
        """Return what the environment's Python prints when it runs in the folder of the checkout."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command, cwd = [str(self.python), *map(str, arguments)], self.checkout.parent
        return subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def install(folder: Path) -> Installed:
    """Make both. The environment sees what is installed here, but for an editable install of this checkout."""
    here, environment = (sys.version_info.major, sys.version_info.minor), folder / "env"
    venv.create(environment, symlinks=True)
    site_packages = environment / "lib" / "python{}.{}".format(*here) / "site-packages"
    (site_packages / "rest.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    installed = Installed(
        folder / "checkout" / PACKAGE.name, site_packages / PACKAGE.name, environment / "bin" / "python"
    )
    caches = shutil.ignore_patterns("__pycache__")
    compiled = shutil.ignore_patterns("__pycache__", "*.so", "netlab_relay")
    shutil.copytree(PACKAGE, installed.checkout, ignore=compiled)
    shutil.copytree(PACKAGE, installed.package, ignore=caches)
    return installed
