"""How much of the grid JAX is asked about, and the memory of what it has compiled."""

from collections.abc import Iterator

import pytest

from tests.contract import cases, jax_backend


def pytest_configure(config: pytest.Config) -> None:
    cases.WHOLE_GRID = "not slow" not in config.option.markexpr


@pytest.fixture(scope="module", autouse=True)
def programs_are_forgotten() -> Iterator[None]:
    yield
    jax_backend.forget()
