"""Clustered attention beside a model's own, which needs transformers."""
