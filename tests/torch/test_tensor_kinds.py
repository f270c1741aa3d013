"""Autocast, half precision, inference mode, strides and parameters change nothing but what they should."""

import pytest
import torch
from torch.testing import assert_close

import catnat.torch as ct

# name: number of classes, activation, tree, kind of mask
from tests.torch.test_transforms import EACH, SMOOTH, draw_scores, make_case, operations, with_gradient


@EACH
def test_autocast_answers_half_precision_in_float32(case):
    pi, _ = make_case(case)
    half = draw_scores(pi, 3).bfloat16()
    for scores in (half, half.float()):
        for name in SMOOTH:
            function = operations(case)[name]
            with torch.autocast("cpu", torch.bfloat16):
                value, gradient = with_gradient(function, scores)
            assert value.dtype == torch.float32 and gradient.dtype == scores.dtype
            expected = with_gradient(function, half.float())
            assert_close(value, expected[0])
            assert_close(gradient, expected[1].to(scores.dtype))
        with torch.autocast("cpu", torch.bfloat16):
            assert ct.sample(scores, pi).shape == (3,)


@EACH
def test_without_gradients_the_values_are_the_same(case):
    scores = draw_scores(make_case(case)[0], 3).requires_grad_()
    for name in SMOOTH:
        function = operations(case)[name]
        with torch.no_grad():
            value = function(scores)
        assert not value.requires_grad
        assert_close(value, function(scores).detach())


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_float32_rounded_at_the_end(case, dtype):
    scores = draw_scores(make_case(case)[0], 3).to(dtype)
    for name in SMOOTH:
        value, gradient = with_gradient(operations(case)[name], scores)
        assert value.dtype == gradient.dtype == dtype
        assert_close(value, operations(case)[name](scores.float()).to(dtype))


LAYOUTS = {
    "transposed": lambda s: s.mT,
    "strided": lambda s: s[::2],
    "expanded": lambda s: s[:1].expand(4, -1),
    "deep": lambda s: s[:4].reshape(2, 1, 2, -1).movedim(0, 2),
    "parameter": lambda s: s,
}


@EACH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_and_parameters_make_no_difference(case, layout):
    pi, arrange = make_case(case)[0], LAYOUTS[layout]
    square = (
        torch.nn.Parameter(draw_scores(pi, pi.num_nodes)) if layout == "parameter" else draw_scores(pi, pi.num_nodes)
    )
    for name in SMOOTH:
        function = operations(case)[name]
        value, plain = function(arrange(square)), function(arrange(square.detach()).contiguous())
        assert_close(value, plain, check_stride=False)
        gradient = with_gradient(lambda s, f=function: f(arrange(s)), square)
        assert_close(gradient, with_gradient(lambda s, f=function: f(arrange(s).contiguous()), square))
