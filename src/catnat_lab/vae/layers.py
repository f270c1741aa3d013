"""The layers of many networks at once: every tensor has a leading axis R of runs that share nothing but the code.

A convolution is a gather of patches and one batched matrix product, a transposed one the product and then the gather's
transpose; so R small networks take the launches of one. Torch's `vmap` of stacked modules makes it a grouped
convolution, which is slower (`benchmarks/vae.py`). Images are [R, B, places, channels]. Weights start as PyTorch's own
layers do. Layers are for the device that is torch's default when they are made.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, unfold
from torch.nn.utils.rnn import pad_sequence

MOMENTUM, EPSILON = 0.1, 1e-5  # of BatchNorm, as in PyTorch
ROWS = 400  # of a matrix product, at least, if it is parted


@dataclass(frozen=True)
class Parameter:
    """A tensor of a network: its shape in one run, and the bound of the uniform numbers it starts with."""

    shape: tuple[int, ...]
    bound: float
    center: float = 0.0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Forward = Callable[[Tensor, list[Tensor], list[Tensor], bool], Tensor]  # input, parameters, buffers, training


@dataclass(frozen=True)
class Layer:
    """What a layer learns, what it keeps besides (zeros or ones at the start), and what it does."""

    forward: Forward
    parameters: tuple[Parameter, ...] = ()
    buffers: tuple[tuple[int, float], ...] = ()  # size and first value
    affine: bool = True  # in its input, once training is over


class Network:
    def __init__(self, *layers: Layer) -> None:
        self.layers = layers
        self.parameters = [p for layer in layers for p in layer.parameters]
        self.buffers = [b for layer in layers for b in layer.buffers]

    def __call__(self, x: Tensor, parameters: list[Tensor], buffers: list[Tensor], training: bool) -> Tensor:
        p = b = 0
        for layer in self.layers:
            ends = p + len(layer.parameters), b + len(layer.buffers)
            x = layer.forward(x, parameters[p : ends[0]], buffers[b : ends[1]], training)
            p, b = ends
        return x

    def as_matrices(self, width: int, parameters: list[Tensor], buffers: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """What the trained network does between its ReLUs: x W + b, with W [R, in, out] and b [R, 1, out].

        To judge, many samples go through one network, and there a large matrix is faster than gathers.
        """
        found: list[tuple[Tensor, Tensor]] = []
        inside: tuple[int, ...] = (width,)
        p = b = 0
        layers = list(self.layers)
        while layers:
            end = next((i for i, layer in enumerate(layers) if not layer.affine), len(layers))
            part = Network(*layers[:end])
            own = parameters[p : p + len(part.parameters)], buffers[b : b + len(part.buffers)]
            size = math.prod(inside)
            points = torch.cat((torch.zeros(1, size), torch.eye(size))).to(parameters[0].device)
            out = part(points.expand(len(parameters[0]), -1, -1).unflatten(2, inside), *own, False)
            inside, out = tuple(out.shape[2:]), out.flatten(2)
            found.append((out[:, 1:] - out[:, :1], out[:, :1]))
            p, b, layers = p + len(part.parameters), b + len(part.buffers), layers[end + 1 :]
        return found


def linear(inputs: int, outputs: int) -> Layer:
    """x W + b."""
    bound = 1 / math.sqrt(inputs)

    def forward(x: Tensor, p: list[Tensor], b: list[Tensor], training: bool) -> Tensor:
        return torch.baddbmm(p[1].unsqueeze(1), x, p[0])

    return Layer(forward, (Parameter((inputs, outputs), bound), Parameter((outputs,), bound)))


def relu() -> Layer:
    return Layer(lambda x, p, b, training: torch.relu(x), affine=False)


def shape(*sizes: int) -> Layer:
    """Another shape behind the axes of runs and batch."""
    return Layer(lambda x, p, b, training: x.reshape(*x.shape[:2], *sizes))


def batch_norm(channels: int) -> Layer:
    """Each channel at mean 0 and deviation 1 over the batch and its places, then scaled and shifted."""

    def forward(x: Tensor, p: list[Tensor], b: list[Tensor], training: bool) -> Tensor:
        (scale, shift), (mean, variance) = p, b
        if training:
            count = x.shape[1] * x.shape[2]
            now_variance, now_mean = torch.var_mean(x, (1, 2), correction=0)
            with torch.no_grad():
                mean.lerp_(now_mean, MOMENTUM)
                variance.lerp_(now_variance * (count / (count - 1)), MOMENTUM)
            mean, variance = now_mean, now_variance
        gain = scale * torch.rsqrt(variance + EPSILON)
        return torch.addcmul((shift - mean * gain)[:, None, None], x, gain[:, None, None])

    one = Parameter((channels,), 0.0, 1.0)
    return Layer(forward, (one, Parameter((channels,), 0.0)), ((channels, 0.0), (channels, 1.0)))


class Gather(torch.autograd.Function):
    """y[t] = sum over j of x[there[t, j]], for x [..., P, C]; an index of P, one past the end, stands for zero.

    ``back`` is the table of the transpose, so that the gradient is such a sum too: no atomics, the same result always.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return _gather_sum(x, there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _gather_sum(gradient, *ctx.saved_tensors), None, None


def _gather_sum(x: Tensor, there: Tensor) -> Tensor:
    """[..., P, C] and [T, m] to [..., T, C]."""
    found = pad(x, (0, 0, 0, 1)).index_select(-2, there.flatten())
    return found if there.shape[1] == 1 else found.unflatten(-2, tuple(there.shape)).sum(-2)


def _patches(size: int, padding: int) -> tuple[Tensor, Tensor]:
    """For windows of 3 x 3, two apart, on a square image: the places of each window's cells, and their transpose.

    [out^2 * 9, 1] and [size^2, m].
    """
    image = torch.arange(1.0, size * size + 1).view(1, 1, size, size)  # its places from 1: 0 is beyond the edge
    cells = unfold(image, 3, padding=padding, stride=2)[0].T.flatten().long()
    users = cells.argsort(stable=True).split(cells.bincount().tolist())[-size * size :]
    back = pad_sequence(list(users), batch_first=True, padding_value=len(cells))
    there = torch.where(cells > 0, cells - 1, size * size).unsqueeze(1)
    return there.to(torch.int32), back.to(torch.int32)


def _product(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    """x W of [R, B, places, in] and [R, in, out], the batch in so many parts, each with W for itself.

    So the gradient of W, a sum over all places of all images, is made part by part: on a GPU one long sum would keep a
    few processors busy and the others idle.
    """
    runs, batch, places, inputs = x.shape
    return (x.reshape(runs, parts, -1, inputs) @ weight.unsqueeze(1)).view(runs, batch, places, -1)


def _parts(x: Tensor) -> int:
    """Of a batch [R, B, places, in] as many as divide it and leave ROWS rows in each; on a CPU one, which is faster."""
    return _most_parts(x.shape[1], x.shape[2]) if x.is_cuda else 1


def _most_parts(batch: int, places: int) -> int:
    most = max(1, min(batch, batch * places // ROWS))
    return [n for n in range(1, most + 1) if batch % n == 0][-1]


def convolution(inputs: int, outputs: int, size: int, out: int, padding: int) -> Layer:
    """3 x 3 with stride 2, from size x size to out x out."""
    bound = 1 / math.sqrt(9 * inputs)
    there, back = _patches(size, padding)

    def forward(x: Tensor, p: list[Tensor], b: list[Tensor], training: bool) -> Tensor:
        patches = Gather.apply(x, there, back)  # [R, B, out^2 * 9, inputs]
        columns = patches.reshape(*x.shape[:2], out * out, 9 * inputs)
        return _product(columns, p[0], _parts(columns)) + p[1][:, None, None]

    return Layer(forward, (Parameter((9 * inputs, outputs), bound), Parameter((outputs,), bound)))


def transposed_convolution(inputs: int, outputs: int, size: int, out: int, padding: int) -> Layer:
    """3 x 3 with stride 2, from size x size to out x out: the transpose of a convolution from out x out."""
    bound = 1 / math.sqrt(9 * outputs)
    there, back = _patches(out, padding)

    def forward(x: Tensor, p: list[Tensor], b: list[Tensor], training: bool) -> Tensor:
        columns = _product(x, p[0], _parts(x)).view(*x.shape[:2], size * size * 9, outputs)
        return Gather.apply(columns, back, there) + p[1][:, None, None]

    return Layer(forward, (Parameter((inputs, 9 * outputs), bound), Parameter((outputs,), bound)))
