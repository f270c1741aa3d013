"""The kernels on a GPU, where there is one: values, gradients, memory, graphs, compilers, draws."""

import numpy as np
import pytest
import torch

import catnat.torch as ct
from catnat import Natural, Parameterization, Sigmoid, Tree
from catnat.torch import _dispatch, _eager
from catnat.torch._plan import find_plan
from catnat_lab import reference

pytestmark = pytest.mark.gpu

CLASSES = (2, 3, 4, 8, 18, 32, 100, 128, 300, 512, 777, 1000, 1024, 3000, 4096, 5000, 8192, 32768, 50257, 131072)
FAMILY = {
    "sigmoid": Sigmoid(),
    **{f"tail {tail:g}": Natural(tail=tail) for tail in (0.5, 0.1, 0.05, 0.01, 1e-3)},
    "paper": Natural(tail=0.0, floor=0.0),
    "floor": Natural(tail=0.0, floor=1e-8),
}
ACTIVATIONS = {
    **FAMILY,
    "amplitude": Natural(amplitude=3.0),
}


def scores(rows, nodes, dtype=torch.float32, scale=1.3):
    return (torch.randn(rows, nodes, device="cuda") * scale).to(dtype)


def double(tensor):
    return tensor.detach().double().cpu().numpy()


def poison():
    """Leave NaNs in the memory that the next allocations will get."""
    for size in (1 << 20, 1 << 22, 1 << 24):
        torch.full((size,), torch.nan, device="cuda")


def gradient_size(x, upstream, pi):
    """The size of the terms that a gradient sums: floats cannot do better than relative to that."""
    _, _, left, right = reference.activation(x, pi)
    below = reference.mass_below(np.abs(upstream), pi)
    return below[..., 2::2] * np.abs(left) + below[..., 3::2] * np.abs(right), below[..., 2::2] + below[..., 3::2]


def is_by_kernels(pi, x):
    walk = _dispatch.walk_for(find_plan(pi, torch.float32, x.device), x)
    return type(walk).__name__ == "KernelWalk"


def judge_of(pi):
    return find_plan(pi, torch.float64, torch.device("cuda", torch.cuda.current_device()))


def close(came, expected, size, tolerance):
    finite = np.isfinite(expected)
    assert (np.isfinite(came) == finite).all()
    error = np.abs(came - expected, where=finite, out=np.zeros_like(expected)) / np.maximum(1, size)
    assert error.max() < tolerance, error.max()


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", ["sigmoid", "natural"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_and_gradients_are_the_oracles(classes, name, dtype):
    torch.manual_seed(classes)
    pi = Parameterization(classes, name)
    rows = max(3, min(77, (1 << 18) // classes))
    x = scores(rows, classes - 1, dtype).requires_grad_()
    upstream = torch.randn(rows, classes, device="cuda").to(dtype)
    poison()
    log_p = ct.log_catnat(x, pi)
    poison()
    (gradient,) = torch.autograd.grad(log_p, x, upstream)
    assert log_p.dtype == gradient.dtype == dtype
    few = np.r_[0 : min(3, rows), rows - 1]
    x64, g64 = double(x)[few], double(upstream)[few]
    expected = reference.log_catnat(x64, pi)
    assert is_by_kernels(pi, x)
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    close(double(log_p)[few], expected, np.abs(expected), tolerance)
    size, below = gradient_size(x64, g64, pi)
    size = size if dtype == torch.float32 else size + below  # see `_gpu.node`
    close(double(gradient)[few], reference.log_catnat_gradient(x64, g64, pi), size, tolerance)
    assert torch.isfinite(log_p).all() and torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("classes", [6, 33, 1000])
def test_the_family_near_its_ends(classes, name):
    pi = Parameterization(classes, FAMILY[name])
    rng = np.random.default_rng(classes)
    shape = 12, classes - 1
    natural = pi.activation
    end = rng.choice([9.0, 17.0, 37.0, 88.0], shape)
    if isinstance(natural, Natural):
        inward = rng.choice([-1, 1], shape) * rng.choice(10.0 ** -np.arange(1, 7), shape)
        end = rng.choice([np.pi, natural.joint], shape) / natural.gain - inward
    few = torch.from_numpy((pi.centers + end * rng.choice([-1, 1], shape)).astype(np.float32)).cuda().requires_grad_()
    upstream = torch.randn(12, classes, device="cuda")
    log_p = ct.log_catnat(few, pi)
    (gradient,) = torch.autograd.grad(log_p, few, upstream)
    expected = reference.log_catnat(double(few), pi)
    close(double(log_p), expected, np.abs(expected), 2e-6)
    size, _ = gradient_size(double(few), double(upstream), pi)
    close(double(gradient), reference.log_catnat_gradient(double(few), double(upstream), pi), size, 2e-6)


@pytest.mark.parametrize("classes", [18, 131072])
def test_a_level_is_off_by_3e_7_at_most(classes):
    """Where every node has the same score, so that what rounds, rounds alike at every level of the likeliest path."""
    for name in ("sigmoid", "natural"):
        pi = Parameterization(classes, name)
        for score in torch.linspace(0.5, 12, 24).tolist():
            x = torch.full((1, classes - 1), score, device="cuda")
            expected = reference.log_prob(double(x), np.array([classes - 1]), pi)
            close(double(ct.log_catnat(x, pi))[:, -1], expected, np.abs(expected), 3e-7 * pi.tree.depth)


@pytest.mark.parametrize("classes", [6, 33, 1024, 5000])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("center", ["uniform", 0.4, "by node"])
def test_all_activations_and_centres_equal_plain_tensor_code(classes, name, center):
    torch.manual_seed(1)
    center = tuple(np.linspace(-0.7, 0.7, classes - 1)) if center == "by node" else center
    pi = Parameterization(classes, ACTIVATIONS[name], center=center)
    plan = judge_of(pi)
    x = scores(9, classes - 1, scale=2.5)
    for function, plain in (
        (lambda s: ct.log_catnat(s, pi), lambda s: _eager.log_classes(s, plan)),
        (lambda s: ct.catnat(s, pi), lambda s: _eager.log_classes(s, plan).exp()),
    ):
        a, b = x.clone().requires_grad_(), x.double().requires_grad_()
        found, expected = function(a), plain(b)
        close(double(found), double(expected), np.abs(double(expected)), 3e-6)
        upstream = torch.rand_like(found)
        upstream = torch.where(torch.isfinite(found), upstream, 0)
        (ours,) = torch.autograd.grad(found, a, upstream)
        (theirs,) = torch.autograd.grad(expected, b, upstream.double())
        size, _ = gradient_size(double(x), double(upstream), pi)
        keep = torch.isfinite(theirs)
        close(double(ours[keep]), double(theirs[keep]), size[keep.cpu().numpy()], 3e-6)


@pytest.mark.parametrize("classes", [18, 64, 1000])
def test_strides_of_the_batch_do_not_matter(classes):
    torch.manual_seed(3)
    wide = scores(40, 2 * classes)
    views = {
        "columns": wide[:, 3 : classes + 2],
        "every second row": wide[::2, : classes - 1],
        "two axes": wide.view(5, 8, -1).transpose(0, 1)[:, :, : classes - 1],
        "three axes": wide.view(5, 4, 2, -1).permute(2, 0, 1, 3)[..., : classes - 1],
        "expanded": wide[:1, : classes - 1].expand(7, -1),
        "last axis strided": scores(classes - 1, 40).t(),
        "one row": wide[0, : classes - 1],
    }
    for name, view in views.items():
        a, b = view.detach().requires_grad_(), view.detach().contiguous().requires_grad_()
        for function in (
            ct.log_catnat,
            ct.entropy,
            lambda s, pi: ct.log_prob(s, torch.zeros_like(s[..., 0]).long(), pi),
        ):
            ours, theirs = function(a, classes), function(b, classes)
            assert torch.equal(ours, theirs), name
            upstream = torch.rand_like(ours)
            assert torch.equal(
                torch.autograd.grad(ours, a, upstream)[0], torch.autograd.grad(theirs, b, upstream)[0]
            ), name


@pytest.mark.parametrize("classes", [2, 5, 18, 64, 1000, 4096])
@pytest.mark.parametrize("name", ["sigmoid", "tail 0.05", "floor"])
def test_a_head_is_its_parts(classes, name):
    torch.manual_seed(4)
    pi = Parameterization(classes, ACTIVATIONS[name])
    x = scores(301, classes - 1).requires_grad_()
    drawn = ct.draw(x, pi)
    given = ct.draw(x, pi, index=drawn.sample)
    plan = judge_of(pi)
    y = x.detach().double().requires_grad_()
    log_p = _eager.log_classes(y, plan)
    chosen = log_p.gather(-1, drawn.sample.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    weights = torch.randn(2, 301, device="cuda")
    (expected,) = torch.autograd.grad((weights[0] * chosen + weights[1] * entropy).sum(), y)
    for found in (drawn, given):
        torch.testing.assert_close(found.log_prob.double(), chosen, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(found.entropy.double(), entropy, rtol=5e-6, atol=5e-6)
        (gradient,) = torch.autograd.grad((weights[0] * found.log_prob + weights[1] * found.entropy).sum(), x)
        upstream = np.abs(double(torch.nn.functional.one_hot(drawn.sample, classes) * weights[0].unsqueeze(1)))
        upstream += np.abs(double(log_p.exp() * log_p * weights[1].unsqueeze(1)))
        close(double(gradient), double(expected), gradient_size(double(x), upstream, pi)[0], 1e-5)
    (alone,) = torch.autograd.grad(ct.entropy(x, pi).sum(), x)
    (expected,) = torch.autograd.grad(-(_eager.log_classes(y, plan).exp() * _eager.log_classes(y, plan)).sum(), y)
    torch.testing.assert_close(alone.double(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("classes", [2, 18, 1000, 131072])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_path_is_read_alone(classes, dtype):
    torch.manual_seed(5)
    for name in ("sigmoid", "natural"):
        pi = Parameterization(classes, name)
        x = scores(33, classes - 1, dtype).requires_grad_()
        index = torch.randint(classes, (4, 33), device="cuda")
        log_p = ct.log_catnat(x.detach().float(), pi)
        for k in (index[0], index):
            found = ct.log_prob(x, k, pi)
            expected = log_p.expand(*k.shape[:-1], -1, -1).gather(-1, k.unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(
                found.float(), expected, rtol=8e-3 if dtype == torch.bfloat16 else 2e-6, atol=2e-6
            )
            (gradient,) = torch.autograd.grad(found.float().sum(), x)
            upstream = np.zeros((33, classes))
            np.add.at(upstream, (np.arange(33)[None].repeat(k.numel() // 33, 0), k.reshape(-1, 33).cpu().numpy()), 1.0)
            size, below = gradient_size(double(x), upstream, pi)
            expected = reference.log_catnat_gradient(double(x), upstream, pi)
            close(
                double(gradient),
                expected,
                size + (below if dtype == torch.bfloat16 else 0),
                1e-2 if dtype == torch.bfloat16 else 3e-6,
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("classes", [2, 100, 5000])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_that_of_the_cpu(dtype, reduction, classes, weighted):
    torch.manual_seed(9)
    s, target = torch.randn(6, 50, classes - 1).to(dtype), torch.randint(classes, (6, 50))
    target[2, ::3] = -1
    weight = torch.rand(classes) if weighted else None
    found = []
    for device in ("cpu", "cuda"):
        x = s.to(device).requires_grad_()
        poison()
        loss = ct.cross_entropy(
            x,
            target.to(device),
            classes,
            reduction=reduction,
            ignore_index=-1,
            weight=weight if weight is None else weight.to(device),
        )
        (gradient,) = torch.autograd.grad(loss.float().sum(), x)
        found.append((loss.detach().cpu(), gradient.cpu()))
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def test_class_ids_that_were_overwritten_are_noticed():
    s, k = scores(8, 17).requires_grad_(), torch.zeros(8, dtype=torch.int64, device="cuda")
    loss = ct.log_prob(s, k, 18).sum()
    k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("classes", [2, 6, 18, 1000])
@pytest.mark.parametrize("name", ["sigmoid", "tail 0.05", "floor"])
def test_draws_follow_their_probabilities(classes, name):
    pi = Parameterization(classes, ACTIVATIONS[name])
    torch.manual_seed(6)
    x = scores(1, classes - 1)
    expected = double(ct.catnat(x, pi))[0]
    n = 400_000
    for drawn in (ct.sample(x[0], pi, sample_shape=(n,)), ct.draw(x.expand(n, -1), pi).sample):
        counts = np.bincount(drawn.cpu().numpy().ravel(), minlength=classes)
        keep = expected * n > 20
        z = (counts - n * expected)[keep] / np.sqrt(n * expected * (1 - expected) + 1e-9)[keep]
        assert np.abs(z).max() < 5.5
        chi = (z**2 * (1 - expected[keep])).sum()
        assert chi < keep.sum() + 6 * np.sqrt(2 * keep.sum())


def test_draws_are_the_generators():
    x = scores(100, 99)
    first = [ct.sample(x, 100, generator=torch.Generator("cuda").manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    torch.manual_seed(0)
    a = ct.draw(x, 100).sample
    b = ct.draw(x, 100).sample
    torch.manual_seed(0)
    assert torch.equal(a, ct.draw(x, 100).sample) and not torch.equal(a, b)


def test_results_are_the_same_run_to_run():
    x, upstream = scores(1000, 999).requires_grad_(), torch.randn(1000, 1000, device="cuda")
    index = torch.randint(1000, (5, 1000), device="cuda")
    runs = []
    for _ in range(3):
        log_p, path = ct.log_catnat(x, 1000), ct.log_prob(x, index, 1000)
        runs.append((log_p, path, *torch.autograd.grad((log_p * upstream).sum() + path.sum(), x)))
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again, strict=True))


@pytest.mark.parametrize("classes", [18, 1024, 131072])
def test_no_memory_beyond_the_results(classes):
    rows = (1 << 24) // classes
    x = scores(rows, classes - 1).requires_grad_()
    ct.log_catnat(x, classes)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    log_p = ct.log_catnat(x, classes)
    out = 4 * rows * classes
    assert torch.cuda.max_memory_allocated() - before <= out + (1 << 21)  # rounding of the allocator
    assert torch.cuda.memory_allocated() - before <= out + (1 << 21)  # nothing is kept but the scores
    upstream = torch.ones_like(log_p)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(log_p, x, upstream)
    assert torch.cuda.max_memory_allocated() - before <= 1.01 * out + (1 << 21)


def test_nan_stays_in_its_row_and_infinite_scores_are_certain():
    for name in ("sigmoid", "natural", "paper"):
        x, pi = scores(6, 99), Parameterization(100, name)
        clean = ct.log_catnat(x, pi)
        x[2, 40] = torch.nan
        found = ct.log_catnat(x.requires_grad_(), pi)
        others = torch.arange(6, device="cuda") != 2
        assert torch.equal(found[others], clean[others])
        assert found[2].isnan().any()
        (gradient,) = torch.autograd.grad(found, x, torch.ones_like(found))
        assert torch.isfinite(gradient[others]).all() and gradient[2, 40].isnan()
    assert ct.entropy(torch.full((1, 3), torch.inf, device="cuda"), Parameterization(4, "sigmoid")).item() == 0


def test_nothing_is_drawn_from_scores_that_are_nan():
    """Nobody waits for the device: the answer is a class that the next use refuses."""
    x = torch.zeros(50, 17, device="cuda")
    x[3] = torch.nan
    clustered = Parameterization(18, tree=Tree.cluster([[k % 4 + k / 100] for k in range(18)]))
    for pi in (Parameterization(18), clustered, Parameterization(18, tree=Tree.chain(18))):
        mask = torch.ones(18, dtype=torch.bool, device="cuda")
        found = [ct.sample(x, pi), ct.mode(x, pi), ct.sample(x, pi, mask=mask)]
        if pi.tree != Tree.chain(18):  # by plain code a draw asks for the log p of its class: the next use
            found.append(ct.draw(x, pi).sample)
        for drawn in found:
            assert drawn[3] == 18 and (drawn[:3] < 18).all() and (drawn[4:] < 18).all()


@pytest.mark.parametrize("name", ["sigmoid", "natural"])
@pytest.mark.parametrize("function", ["log_catnat", "catnat", "entropy", "log_prob"])
def test_second_derivatives(function, name):
    pi, on = Parameterization(18, name), []
    for device in ("cpu", "cuda"):
        torch.manual_seed(7)
        s = torch.randn(4, 17).to(device).requires_grad_()
        index = (torch.arange(4, device=device),) if function == "log_prob" else ()
        value = getattr(ct, function)(s, *index, pi)
        (first,) = torch.autograd.grad(torch.sin(value).sum(), s, create_graph=True)
        (second,) = torch.autograd.grad((first * first).sum(), s)
        on.append(second.cpu())
    torch.testing.assert_close(*on, rtol=2e-3, atol=2e-3)
