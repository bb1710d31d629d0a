"""Plain-torch twins of the kernels, of the same names: what a kernel is held to."""
