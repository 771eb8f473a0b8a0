"""The MPI tool interface (MPI_T), which mpi4py does not bind: reading and writing a library's control variables."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from hvd_compress.engines.mpi_library import MPI

_NAME_BYTES = 256


@cache
def _library() -> ctypes.CDLL:
    """Return the MPI library of this process, with its tool interface initialised.

    mpi4py's own module is linked to it, so a lookup there cannot find another MPI than the one that mpi4py uses. The
    tool interface stays initialised to the end of the process: it counts its users, and finalising gains nothing.
    Raises LookupError where the library has no tool interface.
    """
    library = ctypes.CDLL(MPI.__file__)
    if not hasattr(library, "MPI_T_init_thread"):
        raise LookupError(f"no MPI_T_init_thread is to be found through {MPI.__file__}")
    _check(library.MPI_T_init_thread(MPI.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int())), "MPI_T_init_thread")
    return library


def _check(code: int, what: str) -> None:
    if code != 0:
        raise LookupError(f"{what} failed with code {code}")


def _element_bytes(index: int) -> int:
    """Return the size of a control variable's value: booleans have one byte, integers four."""
    name, name_bytes = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_int(_NAME_BYTES)
    verbosity, bind, scope, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    datatype, enumeration, no_text = _datatype_type()(), ctypes.c_void_p(), ctypes.c_int(0)
    code = _library().MPI_T_cvar_get_info(
        index, name, ctypes.byref(name_bytes), ctypes.byref(verbosity), ctypes.byref(datatype),
        ctypes.byref(enumeration), None, ctypes.byref(no_text), ctypes.byref(bind), ctypes.byref(scope),
    )  # fmt: skip
    _check(code, "MPI_T_cvar_get_info")
    _check(_library().MPI_Type_size(datatype, ctypes.byref(size)), "MPI_Type_size")
    return size.value


def _datatype_type() -> type[ctypes.c_void_p] | type[ctypes.c_int]:
    """Return how this MPI represents MPI_Datatype: Open MPI as a pointer, MPICH and its kin as an int."""
    return ctypes.c_void_p if MPI._sizeof(MPI.Datatype) == ctypes.sizeof(ctypes.c_void_p) else ctypes.c_int


@contextmanager
def _handle(name: str) -> Iterator[tuple[ctypes.c_void_p, int]]:
    index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    _check(_library().MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)), f"looking up {name}")
    code = _library().MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
    _check(code, f"opening {name}")
    try:
        yield handle, _element_bytes(index.value)
    finally:
        _library().MPI_T_cvar_handle_free(ctypes.byref(handle))


def read(name: str) -> int:
    """Return the value of an integer or boolean control variable. Raises LookupError where it is not to be had."""
    with _handle(name) as (handle, size):
        value = ctypes.create_string_buffer(size)
        _check(_library().MPI_T_cvar_read(handle, value), f"reading {name}")
        return int.from_bytes(value.raw, sys.byteorder, signed=size > 1)


def write(name: str, value: int) -> None:
    """Set an integer or boolean control variable. Raises LookupError where that is not allowed."""
    with _handle(name) as (handle, size):
        _check(_library().MPI_T_cvar_write(handle, value.to_bytes(size, sys.byteorder)), f"writing {name}")


@contextmanager
def temporarily(values: Mapping[str, int]) -> Iterator[None]:
    """Set control variables for the length of the block, then put the old values back.

    Raises LookupError where one cannot be read or set; those set before it are put back then, too.
    """
    before: dict[str, int] = {}
    try:
        for name, value in values.items():
            old = read(name)
            write(name, value)
            before[name] = old
        yield
    finally:
        for name, value in before.items():
            write(name, value)
