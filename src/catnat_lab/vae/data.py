"""The digits as the tables use them: grey, thresholded, or drawn anew from their greys; and what is held out."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from catnat_lab.errors import UserError, check_known
from catnat_lab.vae.digits import Digits

VARIANTS = ("grey", "binary", "bernoulli")
HELD_OUT = 12  # of so many training images one is kept for validation: 5,000 of 60,000


class Images(NamedTuple):
    """uint8 images [D, n, 784] of D variants; those ``drawn`` [D] are drawn Bernoulli(grey) whenever they are used."""

    train: Tensor
    validation: Tensor
    test: Tensor
    drawn: Tensor


def images_of(digits: Digits, variants: Sequence[str], split_test: bool) -> Images:
    """The variants' images. The last part of the training images is for validation, or half the test images."""
    check_known("data", variants, VARIANTS)
    train, test = digits.train, digits.test
    if split_test:  # in a random order: the first half of MNIST's test images is easier than the second
        half = len(test) // 2
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
        validation, test = test[order[:half]], test[order[half:]]
    else:
        kept = len(train) - len(train) // HELD_OUT
        train, validation = train[:kept], train[kept:]
    if not all(map(len, (train, validation, test))):
        came = f"{len(digits.train)} and {len(digits.test)}"
        raise UserError(f"the digits must be at least {HELD_OUT} training and 2 test images; got {came}")

    def of(variant: str, images: Tensor) -> Tensor:
        return torch.where(images > 127, 255, 0).to(torch.uint8) if variant == "binary" else images

    parts = [torch.stack([of(variant, images) for variant in variants]) for images in (train, validation, test)]
    return Images(parts[0], parts[1], parts[2], torch.tensor([variant == "bernoulli" for variant in variants]))


def as_pixels(images: Tensor, drawn: Tensor, any_drawn: bool) -> Tensor:
    """uint8 [R, B, 784] as numbers from 0 to 1, drawn anew where ``drawn`` [R]."""
    pixels = images.to(torch.float32) / 255
    if not any_drawn:
        return pixels
    return torch.where(drawn[:, None, None], (torch.rand_like(pixels) < pixels).to(pixels.dtype), pixels)
