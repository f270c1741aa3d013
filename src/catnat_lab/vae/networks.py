"""The two autoencoders of the paper, one convolutional, one dense, and a smaller dense one for trials.

Each is an encoder and a decoder. The encoder gives N x K numbers, of which a head uses as many as it has scores: so
heads of K and of K-1 scores train side by side. Both take and give images of 784 pixels; the decoder gives logits.
"""

from dataclasses import dataclass

from catnat_lab.vae.layers import Network, batch_norm, convolution, linear, relu, shape, transposed_convolution


@dataclass(frozen=True)
class Autoencoder:
    variables: int
    classes: int
    encoder: Network
    decoder: Network


def convolutional(variables: int, classes: int) -> Autoencoder:
    """Three convolutions and two dense layers, and back."""
    encoder = Network(
        shape(784, 1),
        convolution(1, 8, 28, 14, padding=1),
        relu(),
        convolution(8, 16, 14, 7, padding=1),
        batch_norm(16),
        relu(),
        convolution(16, 32, 7, 3, padding=0),
        relu(),
        shape(288),
        linear(288, 128),
        relu(),
        linear(128, variables * classes),
    )
    decoder = Network(
        linear(variables * classes, 128),
        relu(),
        linear(128, 288),
        relu(),
        shape(9, 32),
        transposed_convolution(32, 16, 3, 7, padding=0),
        batch_norm(16),
        relu(),
        transposed_convolution(16, 8, 7, 14, padding=1),
        batch_norm(8),
        relu(),
        transposed_convolution(8, 1, 14, 28, padding=1),
        shape(784),
    )
    return Autoencoder(variables, classes, encoder, decoder)


def dense(variables: int, classes: int, first: int = 512, second: int = 256) -> Autoencoder:
    """784 - 512 - 256 - N x K, and back."""
    code = variables * classes
    encoder = Network(linear(784, first), relu(), linear(first, second), relu(), linear(second, code))
    decoder = Network(linear(code, second), relu(), linear(second, first), relu(), linear(first, 784))
    return Autoencoder(variables, classes, encoder, decoder)


def narrow(variables: int, classes: int) -> Autoencoder:
    """The dense one with a fifth of its weights, for trials on a CPU."""
    return dense(variables, classes, 128, 64)


NETWORKS = {"convolutional": convolutional, "dense": dense, "narrow": narrow}
