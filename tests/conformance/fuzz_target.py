"""What libFuzzer calls: python tests/conformance/fuzz_target.py TARGET CORPUS [OPTIONS]. See tools/fuzz.py."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import atheris_no_libfuzzer as atheris
import torch  # before what is instrumented, or it would be, too
from hypothesis import given, settings
from hypothesis import strategies as st

with atheris.instrument_imports(include=["hvd_compress"]):
    from tests.conformance import malformed


def main() -> None:
    check, strategies = malformed.TARGETS[sys.argv.pop(1)]
    torch.set_num_threads(1)

    @settings(database=None, deadline=None)
    @given(st.tuples(*strategies))
    def property_(arguments: tuple[Any, ...]) -> None:
        try:
            check(*arguments)
        except BaseException:
            traceback.print_exc()
            print(f"repeat it: {check.__name__}{arguments!r}", file=sys.stderr, flush=True)
            raise

    atheris.Setup(sys.argv, property_.hypothesis.fuzz_one_input)  # type: ignore[attr-defined]
    atheris.Fuzz()


if __name__ == "__main__":
    main()
