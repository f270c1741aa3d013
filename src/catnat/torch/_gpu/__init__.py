"""Triton kernels for the balanced tree on an NVIDIA GPU; loaded on first use there, never at import.

- `coins`: log a, log(1-a) and their slopes of a score in registers;
- `walk`: log p (or p) of every class and its gradient; `path`: of one class a row, and sampling; `head`: a draw, its
  log p and the entropy at once;
- `blocks`: which shape of program for which tree; `launch`: tensors to grids; `ops`: what PyTorch sees of it.
"""
