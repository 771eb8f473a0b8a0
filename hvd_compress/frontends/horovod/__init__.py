"""The drop-in for horovod.torch, whose module is hvd_compress.torch."""
