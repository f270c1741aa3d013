"""Every test finds PyTorch as a fresh process has it."""

import pytest
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def validation_is_on() -> None:
    """PyTorch's compiler turns the distributions' validation off for the whole process."""
    Distribution.set_default_validate_args(True)
