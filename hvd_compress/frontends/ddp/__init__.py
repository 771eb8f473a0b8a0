"""The front end of PyTorch DDP's users; their module is hvd_compress.ddp."""
