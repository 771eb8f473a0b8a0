"""The front end of Horovod's users; their module is hvd_compress.torch."""
