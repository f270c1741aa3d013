"""Stacked layers are PyTorch's own, run by run: values, gradients, running statistics and steps of Adam."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from catnat_lab.vae import layers
from catnat_lab.vae.networks import convolutional, dense
from catnat_lab.vae.stack import Run, Stack
from tests.lab.plain_autoencoder import export

CPU = torch.device("cpu")
RUNS = [Run("grey", "softmax", 0.1, seed) for seed in (1, 2, 3)]


def stack_of(optimizer: str = "sgd") -> Stack:
    return Stack(RUNS, convolutional(3, 4), optimizer, CPU)


def images(batch: int = 5) -> Tensor:
    return torch.rand(len(RUNS), batch, 784, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("training", [True, False])
def test_networks_are_those_of_torch(row: int, training: bool) -> None:
    stack, x = stack_of(), images()
    for buffer in stack.buffers[1::2]:
        buffer.mul_(1.7)  # variances that show where they are used
    encoder, decoder = (module.train(training) for module in export(stack, row))
    z = torch.rand(len(RUNS), 5, 3, 4)
    scores = stack.scores(x, stack.views(), training)[row].flatten(1)
    logits = stack.decode(z, stack.views(), training)[row]
    torch.testing.assert_close(scores, encoder(x[row].view(-1, 1, 28, 28)), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits, decoder(z[row].flatten(1)).flatten(1), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(export(stack, row), (encoder, decoder), strict=True):  # running statistics too
        for name, value in ours.state_dict().items():
            if "running" in name:
                torch.testing.assert_close(value, theirs.state_dict()[name])


def test_gradients_are_those_of_torch() -> None:
    stack, x = stack_of(), images()
    weight = torch.randn(5, 784, generator=torch.Generator().manual_seed(1))
    codes = stack.scores(x, stack.views(), True).softmax(-1)
    (gradient,) = torch.autograd.grad((stack.decode(codes, stack.views(), True) * weight).sum(), stack.parameters)
    moved = Stack(RUNS, convolutional(3, 4), "sgd", CPU)
    with torch.no_grad():
        moved.parameters.copy_(gradient)
    encoder, decoder = export(stack, 1)
    codes = encoder(x[1].view(-1, 1, 28, 28)).view(-1, 3, 4).softmax(-1)
    (decoder(codes.flatten(1)).flatten(1) * weight).sum().backward()
    for ours, theirs in zip(export(moved, 1), (encoder, decoder), strict=True):  # the same change of axes
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert other.grad is not None
            torch.testing.assert_close(one, other.grad, rtol=1e-3, atol=1e-3)  # a bias before BatchNorm has none


@pytest.mark.parametrize("parts", [1, 3, 6])
def test_a_parted_product_is_the_whole_one(parts: int) -> None:
    x, weight = torch.randn(2, 6, 4, 5, requires_grad=True), torch.randn(2, 5, 3, requires_grad=True)
    found, expected = layers._product(x, weight, parts), torch.einsum("rbpi,rio->rbpo", x, weight)
    torch.testing.assert_close(found, expected)
    change = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad(y, (x, weight), change) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("batch", "places", "parts"), [(100, 196, 25), (100, 49, 10), (100, 9, 2), (20, 9, 1), (97, 196, 1), (1, 4000, 1)]
)
def test_parts_divide_the_batch_and_are_not_too_small(batch: int, places: int, parts: int) -> None:
    assert layers._most_parts(batch, places) == parts
    assert parts == 1 or (batch % parts == 0 and batch // parts * places >= layers.ROWS)


def test_a_trained_network_is_a_few_matrices() -> None:
    stack = stack_of()
    for buffer in stack.buffers:
        buffer.add_(torch.rand_like(buffer))
    views, z = stack.views(), torch.rand(len(RUNS), 7, 3, 4)
    x = z.flatten(2)
    for i, (weight, bias) in enumerate(stack.decoder_matrices(views)):
        x = torch.baddbmm(bias, torch.relu(x) if i else x, weight)
    torch.testing.assert_close(x, stack.decode(z, views, False), rtol=1e-4, atol=1e-5)


def test_seeds_start_like_torch_and_alike_for_every_head() -> None:
    one, other = (Stack([Run("grey", name, 0.1, 5)], dense(3, 4), "sgd", CPU) for name in ("softmax", "catnat-paper"))
    torch.testing.assert_close(one.parameters, other.parameters)
    for view, shape in zip(one.views()[::2], one.shapes[::2], strict=True):
        bound = shape[0] ** -0.5
        assert view.abs().max() <= bound and view.detach().std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_nodes_outside_the_natural_range_are_counted_run_by_run() -> None:
    names = ("catnat", "catnat-paper", "catnat-paper", "catnat-sigmoid", "catnat-sigmoid", "softmax")
    stack = Stack([Run("grey", name, 0.1, 1) for name in names], dense(3, 3), "sgd", CPU)
    scores = torch.zeros(6, 5, 3, 3)
    scores[:, :, 0, 0] = -2.0  # one of six nodes, 2.7 from its centre: outside the default's range, inside the paper's
    scores[1] = 9.0
    scores[..., 2] = 99.0  # no score: three classes have two nodes
    shares = stack.outside_shares(scores)
    assert shares == {0: pytest.approx(1 / 6), 1: 1.0, 2: 0.0}
    scores[0, 0, 0, 0] = torch.nan
    assert torch.tensor(stack.outside_shares(scores)[0]).isnan()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_steps_are_those_of_torch_at_every_runs_own_rate(optimizer: str) -> None:
    runs = [Run("grey", "softmax", rate, 1) for rate in (0.01, 0.001)]
    stack = Stack(runs, dense(2, 3), optimizer, CPU)
    theirs = [torch.nn.Parameter(row.detach().clone()) for row in stack.parameters]
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
    steppers = [kind([p], lr=run.rate) for p, run in zip(theirs, runs, strict=True)]  # type: ignore[operator]
    target = torch.randn_like(stack.parameters)
    for _ in range(4):
        stack.descend((stack.parameters - target).square().sum())
        for p, goal, stepper in zip(theirs, target, steppers, strict=True):
            stepper.zero_grad()
            (p - goal).square().sum().backward()
            stepper.step()
    torch.testing.assert_close(stack.parameters, torch.stack([p.detach() for p in theirs]), rtol=1e-5, atol=1e-6)
