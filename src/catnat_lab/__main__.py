"""`catnat`, also as `python -m catnat_lab`."""

import os
import sys


def main() -> int:
    """Run the command line, or say in one line what it lacks."""
    try:
        from catnat_lab import cli
    except KeyboardInterrupt:  # the imports take seconds
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("catnat", "catnat_lab"):
            raise
        way = "run make install in catnat's folder, or pip install '.[lab]' there"
        print(f"error: the experiments need {error.name}: {way}", file=sys.stderr)
        return 2
    try:
        return cli.main()
    except BrokenPipeError:  # nobody reads on, as in `catnat --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
