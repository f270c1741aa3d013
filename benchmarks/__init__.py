"""Speed, measured as ratios against a named rival in one run. `python -m benchmarks`, or `make bench`."""
