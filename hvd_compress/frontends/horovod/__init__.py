"""The drop-in for horovod.torch, whose module is hvd_compress.torch."""

from hvd_compress.extras import needed as _needed

with _needed("horovod", "hvd_compress.torch"):
    import horovod.torch as _horovod  # noqa: F401
