"""The autoencoders of the paper, many at once: their layers, how they start, and the two parts of their bound.

Every tensor has a leading axis R of runs (`catnat_lab.stack`). A convolution is a gather of patches and one batched
matrix product, a transposed one the product and then the gather's transpose. Images are [R, B, places, channels].
Weights start as PyTorch's own layers do. Layers are for the device that is torch's default when they are made.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus, unfold
from torch.nn.utils.rnn import pad_sequence

import catnat.torch as ct
from catnat_lab.stack import Run, Stack

PIXELS = 784
MOMENTUM, EPSILON = 0.1, 1e-5  # of BatchNorm, as in PyTorch
ROWS = 400  # of a matrix product, at least, if it is parted
Forward = Callable[[Tensor, list[Tensor], list[Tensor], bool], Tensor]  # input, parameters, buffers, training


class Parameter(NamedTuple):
    """A tensor of a network: its shape in one run, and the uniform numbers it starts with."""

    shape: tuple[int, ...]
    bound: float
    center: float = 0.0

    def first(self, stream: torch.Generator) -> Tensor:
        return self.center + self.bound * (2 * torch.rand(math.prod(self.shape), generator=stream) - 1)


@dataclass(frozen=True)
class Layer:
    """What a layer learns, what it keeps besides (zeros or ones at the start), and what it does."""

    forward: Forward
    parameters: tuple[Parameter, ...] = ()
    buffers: tuple[tuple[int, float], ...] = ()  # size and first value


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
        """What the trained network does between its ReLUs: x W + b, with W [R, in, out] and b [R, 1, out]."""
        found: list[tuple[Tensor, Tensor]] = []
        inside: tuple[int, ...] = (width,)
        p, b, layers = list(parameters), list(buffers), list(self.layers)
        while layers:
            end = next((i for i, layer in enumerate(layers) if layer is RELU), len(layers))
            part, layers = Network(*layers[:end]), layers[end + 1 :]
            size = math.prod(inside)
            points = torch.cat((torch.zeros(1, size), torch.eye(size))).to(parameters[0].device)
            out = part(points.expand(len(parameters[0]), -1, -1).unflatten(2, inside), p, b, False)
            inside, out = tuple(out.shape[2:]), out.flatten(2)
            found.append((out[:, 1:] - out[:, :1], out[:, :1]))
            del p[: len(part.parameters)], b[: len(part.buffers)]
        return found


RELU = Layer(lambda x, p, b, training: torch.relu(x))


def linear(inputs: int, outputs: int) -> Layer:
    """x W + b."""
    bound = 1 / math.sqrt(inputs)

    def forward(x: Tensor, p: list[Tensor], b: list[Tensor], training: bool) -> Tensor:
        return torch.baddbmm(p[1].unsqueeze(1), x, p[0])

    return Layer(forward, (Parameter((inputs, outputs), bound), Parameter((outputs,), bound)))


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
    batch, places = x.shape[1:3]
    most = max(1, min(batch, batch * places // ROWS)) if x.is_cuda else 1
    return next(n for n in range(most, 0, -1) if batch % n == 0)


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


@dataclass(frozen=True)
class Autoencoder:
    """An encoder of images of 784 pixels, and a decoder that gives their logits.

    The encoder gives ``width`` scores a variable, of which a head uses the first: so all heads train side by side.
    """

    variables: int
    classes: int
    width: int
    encoder: Network
    decoder: Network


def convolutional(variables: int, classes: int) -> Autoencoder:
    """Three convolutions and two dense layers, and back."""
    encoder = Network(
        shape(PIXELS, 1),
        convolution(1, 8, 28, 14, padding=1),
        RELU,
        convolution(8, 16, 14, 7, padding=1),
        batch_norm(16),
        RELU,
        convolution(16, 32, 7, 3, padding=0),
        RELU,
        shape(288),
        linear(288, 128),
        RELU,
        linear(128, variables * classes),
    )
    decoder = Network(
        linear(variables * classes, 128),
        RELU,
        linear(128, 288),
        RELU,
        shape(9, 32),
        transposed_convolution(32, 16, 3, 7, padding=0),
        batch_norm(16),
        RELU,
        transposed_convolution(16, 8, 7, 14, padding=1),
        batch_norm(8),
        RELU,
        transposed_convolution(8, 1, 14, 28, padding=1),
        shape(PIXELS),
    )
    return Autoencoder(variables, classes, classes, encoder, decoder)


def dense(variables: int, classes: int, hidden: tuple[int, int] = (512, 256), width: int | None = None) -> Autoencoder:
    """784 - 512 - 256 - N x K, and back."""
    (first, second), width = hidden, width or classes
    encoder = Network(linear(PIXELS, first), RELU, linear(first, second), RELU, linear(second, variables * width))
    decoder = Network(linear(variables * classes, second), RELU, linear(second, first), RELU, linear(first, PIXELS))
    return Autoencoder(variables, classes, width, encoder, decoder)


NETWORKS = {"convolutional": convolutional, "dense": dense}


class SeededRun(Run, Protocol):
    """A run that starts from a seed."""

    @property
    def seed(self) -> int: ...


class Autoencoders(Stack):
    """R of them; a seed starts alike with every head."""

    def __init__(self, runs: Sequence[SeededRun], model: Autoencoder, device: torch.device, **options: Any) -> None:
        self.model = model
        specs, buffers = (
            model.encoder.parameters + model.decoder.parameters,
            model.encoder.buffers + model.decoder.buffers,
        )

        def start(seed: int) -> Tensor:
            stream = torch.Generator().manual_seed((seed * 1009 + model.variables) * 1009 + model.classes)
            return torch.cat([spec.first(stream) for spec in specs])

        starts = {seed: start(seed) for seed in {run.seed for run in runs}}
        super().__init__(
            runs,
            model.classes,
            torch.stack([starts[run.seed] for run in runs]),
            [spec.shape for spec in specs],
            device,
            buffers=[torch.full((len(runs), size), value) for size, value in buffers],
            **options,
        )

    def scores(self, x: Tensor, views: list[Tensor], training: bool = True) -> Tensor:
        """What the encoders make of images [R, B, 784]: [R, B, N, width]."""
        encoder = self.model.encoder
        p, b = len(encoder.parameters), len(encoder.buffers)
        return encoder(x, views[:p], self.buffers[:b], training).unflatten(-1, (self.model.variables, -1))

    def decode(self, z: Tensor, views: list[Tensor], training: bool = True) -> Tensor:
        """Logits of the pixels [R, ..., 784] from one-hot variables [R, ..., N, K]."""
        p, b = len(self.model.encoder.parameters), len(self.model.encoder.buffers)
        codes = z.flatten(-2).flatten(1, -2)
        return self.model.decoder(codes, views[p:], self.buffers[b:], training).unflatten(1, z.shape[1:-2])

    def decoder(self, views: list[Tensor], *, as_matrices: bool) -> Callable[[Tensor], Tensor]:
        """The trained decoders. As matrices they are ten times the arithmetic, on a GPU in a fraction of the time."""
        if not as_matrices:
            return lambda z: self.decode(z, views, training=False)
        p, b = len(self.model.encoder.parameters), len(self.model.encoder.buffers)
        code = self.model.variables * self.model.classes
        matrices = self.model.decoder.as_matrices(code, views[p:], self.buffers[b:])

        def decode(z: Tensor) -> Tensor:
            x = z.flatten(-2).flatten(1, -2)
            for i, (weight, bias) in enumerate(matrices):
                x = torch.baddbmm(bias, torch.relu_(x) if i else x, weight)
            return x.unflatten(1, z.shape[1:-2])

        return decode


def cross_entropy(logits: Tensor, x: Tensor) -> Tensor:
    """- log p of pixels in [0, 1] under Bernoulli logits, summed: [..., 784] to [...]."""
    return (softplus(logits) - x * logits).sum(-1)


def kl_from_uniform(log_q: Tensor) -> Tensor:
    """KL from the posterior to the uniform prior, summed over the variables: [..., N, K] to [...]."""
    classes = log_q.shape[-1]
    return ct.latents.kl_divergence(log_q, log_q.new_full((classes,), -math.log(classes))).sum(-1)


def one_hot(index: Tensor, classes: int) -> Tensor:
    """float32 [..., K] of class ids; torch's own asks a GPU how many classes there are, and waits for it."""
    zeros = torch.zeros((*index.shape, classes), device=index.device)
    return zeros.scatter_(-1, index.unsqueeze(-1), 1.0)
