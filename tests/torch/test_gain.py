"""How much a head learns at softmax's own rate: with two classes the gain that makes up for it is exact."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import catnat
import catnat.torch as ct


@pytest.mark.parametrize(
    ("optimiser", "options", "gain"),
    [(torch.optim.SGD, {"lr": 0.1}, math.sqrt(2)), (torch.optim.Adam, {"lr": 1e-2, "eps": 1e-30}, 2.0)],
)
def test_two_classes_train_as_softmax_does(optimiser: type, options: dict[str, float], gain: float) -> None:
    """At every step, from the same function: the sigmoid does by a gain of sqrt 2 with SGD, and of 2 with Adam.

    Of Adam this is so without its epsilon, which knows the scale of a gradient.
    """
    pi = catnat.Parameterization(2, catnat.Natural(amplitude=2 * math.pi / gain, tail=0.5))
    random = torch.Generator().manual_seed(0)
    x = torch.randn(64, 5, dtype=torch.float64, generator=random)
    y = (x[:, 0] > 0).long()
    hidden, logits = (torch.randn(8, n, dtype=torch.float64, generator=random) for n in (5, 2))
    way = ct.log_catnat(torch.ones(1, 1, dtype=torch.float64), pi).diff().sign()  # which class a score speaks for
    last = {"softmax": logits.T, "catnat": way * (logits[:, 1] - logits[:, 0])[None] / gain}
    found: dict[str, list[Tensor]] = {}
    for name, weight in last.items():
        weights = [nn.Parameter(hidden.clone()), nn.Parameter(weight.clone())]
        steps = optimiser(weights, **options)
        for _ in range(100):
            scores = functional.linear(functional.linear(x, weights[0]).tanh(), weights[1])
            log_p = torch.log_softmax(scores, -1) if name == "softmax" else ct.log_catnat(scores, pi)
            found.setdefault(name, []).append(log_p.detach())
            steps.zero_grad()
            functional.nll_loss(log_p, y).backward()
            steps.step()
    first, *_, end = (functional.nll_loss(log_p, y) for log_p in found["softmax"])
    assert end < 0.3 < 0.6 < first  # it has learnt
    torch.testing.assert_close(found["catnat"], found["softmax"], rtol=1e-9, atol=1e-9)
