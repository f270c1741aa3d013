"""The same laws on a GPU, where there is one: the CPU's values, device asserts, graphs and compilation."""

import subprocess
import sys

import pytest
import torch

import catnat.torch as ct
from catnat import Natural, Parameterization, Tree

pytestmark = pytest.mark.gpu

PARAMETERIZATIONS = [
    Parameterization(18, "sigmoid"),
    Parameterization(18, "natural"),
    Parameterization(64, Natural(tail=0.001)),
    Parameterization(33, Natural(tail=0.0), Tree.chain(33)),
    Parameterization(100, "natural", Tree.huffman([1 / (k + 1) for k in range(100)])),
    Parameterization(1000, "sigmoid", Tree.chain(1000)),
]


def both_devices(function, *tensors):
    """Values and gradients of a function of floating-point tensors, on the CPU and on the GPU."""
    found = []
    for device in ("cpu", "cuda"):
        inputs = [t.detach().to(device).requires_grad_(t.is_floating_point()) for t in tensors]
        value = function(*inputs)
        gradients = torch.autograd.grad(value.sum(), [t for t in inputs if t.requires_grad])
        found.append([t.detach().cpu() for t in (value, *gradients)])
    return found


@pytest.mark.parametrize("pi", PARAMETERIZATIONS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_and_gradients_are_those_of_the_cpu(pi, dtype):
    torch.manual_seed(0)
    s, t = torch.randn(2, 50, pi.num_nodes, dtype=dtype)
    k = torch.randint(pi.num_classes, (50,))
    mask = torch.rand(50, pi.num_classes) < 0.5
    mask[:, 0] = True
    # float32 slopes reach 5000 at the floor, and roundings differ between devices; float64 is the sharp judge
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    for function, arguments in {
        "log_catnat": (lambda s: torch.sin(ct.log_catnat(s, pi)), (s,)),
        "log_prob": (lambda s, k: ct.log_prob(s, k, pi), (s, k)),
        "entropy": (lambda s: ct.entropy(s, pi), (s,)),
        "kl": (lambda s, t: ct.kl_divergence(s, t, pi), (s, t)),
        "masked": (lambda s, m: ct.catnat(s, pi, mask=m), (s, mask)),
        "fisher": (lambda s: ct.fisher_diagonal(s, pi) + 0 * s, (s,)),
    }.values():
        on_cpu, on_gpu = both_devices(function, *arguments)
        for a, b in zip(on_cpu, on_gpu, strict=True):
            torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("pi", PARAMETERIZATIONS, ids=repr)
def test_samples_follow_their_probabilities(pi):
    torch.manual_seed(0)
    s = torch.randn(pi.num_nodes, device="cuda")
    generator = torch.Generator("cuda").manual_seed(1)
    drawn = ct.sample(s, pi, sample_shape=(200_000,), generator=generator)
    frequency = torch.bincount(drawn, minlength=pi.num_classes) / drawn.numel()
    expected = ct.catnat(s, pi)
    assert ((frequency - expected).abs() < 6 * (expected / drawn.numel()).sqrt() + 1e-4).all()


def test_an_index_out_of_range_is_a_device_assert_and_no_stray_read():
    for bad in (-1, 18):
        program = f"""
import torch, catnat.torch as ct
s = torch.zeros(4, 17, device="cuda")
try:
    ct.log_prob(s, torch.tensor([0, 1, {bad}, 3], device="cuda"), 18)
    torch.cuda.synchronize()
except RuntimeError:
    raise SystemExit(77)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode in (77, -6), done.stderr


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_a_training_step_is_captured_in_a_graph(activation):
    s = torch.randn(256, 17, device="cuda", requires_grad=True)
    k, pi = torch.randint(18, (256,), device="cuda"), Parameterization(18, activation)

    def step():
        loss = ct.cross_entropy(s, k, pi) - ct.entropy(s, pi).mean()
        return (loss, *torch.autograd.grad(loss, s), ct.sample(s, pi))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, gradient, _ = step()
    with torch.no_grad():
        s.copy_(torch.randn_like(s))
    graph.replay()
    expected = step()
    torch.testing.assert_close(loss, expected[0])
    torch.testing.assert_close(gradient, expected[1])


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_compiled_equals_eager(activation):
    s = torch.randn(64, 99, device="cuda", requires_grad=True)
    upstream = torch.randn(64, 100, device="cuda")
    compiled = torch.compile(ct.log_catnat, fullgraph=True)
    values = [f(s, Parameterization(100, activation)) for f in (ct.log_catnat, compiled)]
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(v, s, upstream)[0] for v in values]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_half_precision_is_computed_in_float32():
    s = torch.randn(64, 1023, device="cuda")
    for dtype in (torch.float16, torch.bfloat16):
        rounded = s.to(dtype)
        torch.testing.assert_close(ct.log_catnat(rounded, 1024), ct.log_catnat(rounded.float(), 1024).to(dtype))
