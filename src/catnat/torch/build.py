"""Compile the CPU's operator ahead of its first use: `python -m catnat.torch.build`."""

import sys

from catnat.torch._cpu.build import load

if __name__ == "__main__":
    found = load()
    if found is None:
        sys.exit("nothing was built: no compiler works, or CATNAT_COMPILE=0 forbids it")
    print(found.__file__)
