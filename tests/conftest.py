"""Settings that every test shares."""

import os

from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers have the cores already; before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every machine and no time limit on one: a run must not fail because it was slow or unlucky.
settings.register_profile("catnat", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("catnat")
