"""The evidence for catnat: the paper's experiments, run, resumed, compared with its numbers and drawn."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from catnat_lab.comparison.run import compare as compare


def __getattr__(name: str) -> Any:
    """`compare`, once it is asked for: what it takes is imported then."""
    if name != "compare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from catnat_lab.comparison.run import compare

    return compare
