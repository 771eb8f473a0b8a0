"""mpi4py's MPI, or a sentence about how to get it. Importing this module starts MPI."""

from hvd_compress.extras import needed

with needed("mpi4py", "engine 'mpi'"):
    from mpi4py import MPI

__all__ = ["MPI"]
