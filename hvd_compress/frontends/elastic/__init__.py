"""Training that goes on with the ranks that are there, whose module is hvd_compress.elastic."""
