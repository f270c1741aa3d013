"""Triton kernels for the balanced tree on an NVIDIA GPU; loaded on first use there, never at import.

- `coin`: a parameterization's numbers, as the kernels take them;
- `node`: the logit of a score and its slope, in registers, and what follows from them;
- `walk`: log p (or p) of every class; `pull`: its gradient; `moves`: between memory and registers;
- `path`: log p of given classes, a loss, their gradient, and sampling; `head`: a draw, its log p and the entropy;
- `blocks`: which shape of program for which tree; `launcher`, `launch`: tensors to grids;
- `operators`: what PyTorch's compilers see of it; `autograd`: what `catnat.torch._dispatch` calls.
"""
