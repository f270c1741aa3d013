"""What the tests of the VAE's training share, on a CPU and on a GPU."""

from __future__ import annotations

import pytest

from catnat_lab.vae import train as training


class Kill:
    """Save after every step, and end the process, as it were, at the given one; ``steps`` counts them all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.steps = 0
        real = training.Trainer.step

        def step(trainer: training.Trainer, done: int) -> None:
            self.steps += 1
            if self.steps == at:
                raise KeyboardInterrupt
            real(trainer, done)

        monkeypatch.setattr(training, "SAVED_EVERY", -1.0)
        monkeypatch.setattr(training.Trainer, "step", step)
