"""What the tests of the VAE's training share, on a CPU and on a GPU."""

from __future__ import annotations

import pytest
import torch

from catnat_lab.vae import train as training
from catnat_lab.vae.digits import Digits, Images, images_of


def fake_digits(count: int = 240) -> Digits:
    """Two kinds of images: a bar on the left or on the right."""
    images = torch.zeros(count, 28, 28, dtype=torch.uint8)
    images[::2, 4:24, 4:10] = 230
    images[1::2, 4:24, 18:24] = 230
    return Digits(images.flatten(1), images[:30].flatten(1), "bars")


def bars() -> Images:
    return images_of(fake_digits(), ("grey",), False)


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
