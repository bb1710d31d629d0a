"""One command that proves and measures the GPU path: `python -m benchmarks.gpu`. See `benchmarks.gpu.__main__`."""
