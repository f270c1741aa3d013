"""The kernels' operators on a GPU, where there is one: opcheck, compilers, export, captured graphs."""

import pytest
import torch
from torch import library

import catnat.torch as ct
from catnat import Parameterization
from catnat.torch._bernoulli import bernoulli_of

pytestmark = pytest.mark.gpu


def scores(rows, nodes, dtype=torch.float32):
    return torch.randn(rows, nodes, device="cuda").to(dtype)


def ids(x, *more):
    return torch.ones(*x.shape[:-1], *more, dtype=torch.int64, device="cuda")


OPERATORS = {
    "walk": lambda x, classes: (False,),
    "pull": lambda x, classes: (torch.rand(*x.shape[:-1], classes, device="cuda"), True),
    "log_path": lambda x, classes: (ids(x, 2),),
    "loss": lambda x, classes: (ids(x), 3, None, "none"),
    "loss, reduced": lambda x, classes: (ids(x), 3, torch.rand(classes, device="cuda"), "mean"),
    "sample": lambda x, classes: (torch.tensor([3], device="cuda"), 5),
    "entropy": lambda x, classes: (),
    "sample_and_score": lambda x, classes: (torch.tensor([3], device="cuda"),),
    "score": lambda x, classes: (ids(x),),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("classes", [18, 64])
def test_opcheck(name, classes):
    for activation in ("sigmoid", "natural"):
        pi = Parameterization(classes, activation)
        ct.log_catnat(scores(1, classes - 1), pi)  # loads the operators
        x = scores(12, classes - 1).requires_grad_(name not in ("pull", "sample"))
        operator = getattr(torch.ops.catnat, name.split(",")[0]).default
        library.opcheck(operator, (x, *bernoulli_of(pi, x.device), *OPERATORS[name](x, classes)))


@pytest.mark.parametrize("name", ["sigmoid", "natural"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_equals_eager_and_has_no_breaks(name, dtype):
    pi = Parameterization(100, name)

    def step(s, k):
        drawn = ct.draw(s, pi, index=k)
        loss = ct.log_catnat(s, pi).sin().mean() - ct.cross_entropy(s, k, pi) + ct.catnat(s, pi).square().mean()
        return loss + drawn.log_prob.mean() + drawn.entropy.mean() + ct.entropy(s, pi).mean()

    torch.manual_seed(8)
    s, k = scores(64, 99, dtype).requires_grad_(), torch.randint(100, (64,), device="cuda")
    plain = step(s, k)
    compiled = torch.compile(step, fullgraph=True)(s, k)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(plain, compiled, **tolerance)
    torch.testing.assert_close(*(torch.autograd.grad(v, s)[0] for v in (plain, compiled)), **tolerance)
    draws = torch.compile(lambda s: ct.sample(s, pi), fullgraph=True)(s)
    assert draws.shape == (64,) and (draws >= 0).all() and (draws < 100).all()


def test_export_keeps_the_operator():
    class Head(torch.nn.Module):
        def forward(self, s):
            return ct.log_catnat(s, 100)

    s = scores(8, 99)
    program = torch.export.export(Head(), (s,))
    assert any("catnat" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(s), ct.log_catnat(s, 100))


def test_a_captured_head_draws_anew():
    s = scores(256, 17).requires_grad_()
    for _ in range(3):
        ct.draw(s, 18)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = ct.draw(s, 18)
        (gradient,) = torch.autograd.grad(drawn.log_prob.sum() + drawn.entropy.sum(), s)
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(drawn.sample.clone())
    assert not torch.equal(*seen)
    given = ct.draw(s, 18, index=drawn.sample)
    torch.testing.assert_close(given.log_prob, drawn.log_prob)
    torch.testing.assert_close(gradient, torch.autograd.grad(given.log_prob.sum() + given.entropy.sum(), s)[0])
