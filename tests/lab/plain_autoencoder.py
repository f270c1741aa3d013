"""One run of a stack as ordinary modules of torch.nn, written down independently of the lab's layers."""

import torch
from torch import Tensor, nn

from catnat_lab.vae.model import Autoencoder, Autoencoders


def modules(model: Autoencoder) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder, of images [B, 1, 28, 28], or of [B, 784] for the dense one, and decoder, freshly initialized."""
    width = model.variables * model.classes
    if model.encoder.parameters[0].shape == (784, 512):
        encoder = (nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width))
        decoder = (nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 784))
        return nn.Sequential(*encoder), nn.Sequential(*decoder)
    encoder = (nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
    encoder += (nn.Conv2d(16, 32, 3, 2, 0), nn.ReLU(), nn.Flatten())
    encoder += (nn.Linear(288, 128), nn.ReLU(), nn.Linear(128, width))
    decoder = (nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 288), nn.ReLU(), nn.Unflatten(1, (32, 3, 3)))
    decoder += (nn.ConvTranspose2d(32, 16, 3, 2, 0, 0), nn.BatchNorm2d(16), nn.ReLU())
    decoder += (nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.BatchNorm2d(8), nn.ReLU())
    decoder += (nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),)
    return nn.Sequential(*encoder), nn.Sequential(*decoder)


@torch.no_grad()
def export(stack: Autoencoders, row: int) -> tuple[nn.Sequential, nn.Sequential]:
    """One run of a stack as modules on the CPU."""
    encoder, decoder = modules(stack.model)
    values = iter([view[row].cpu() for view in stack.views()])
    kept = iter([buffer[row].cpu() for buffer in stack.buffers])
    for module in (*encoder, *decoder):
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean, module.running_var = next(kept).clone(), next(kept).clone()
        if not list(module.parameters()):
            continue
        weight, bias = next(values), next(values)
        module.weight.copy_(_as_torch(module, weight))
        # the dense layer that makes 3 x 3 images of 32 channels has its channels last
        last = bias.view(9, 32).T.flatten() if isinstance(module, nn.Linear) and module.out_features == 288 else bias
        module.bias.copy_(last)
    return encoder, decoder


def _as_torch(module: nn.Module, weight: Tensor) -> Tensor:
    """Our order of a weight's axes in PyTorch's: ours has the window's cells, or an image's places, before channels."""
    if isinstance(module, nn.Conv2d):
        return weight.view(3, 3, module.in_channels, module.out_channels).permute(3, 2, 0, 1)
    if isinstance(module, nn.ConvTranspose2d):
        return weight.view(module.in_channels, 3, 3, module.out_channels).permute(0, 3, 1, 2)
    if isinstance(module, nn.Linear):
        if module.in_features == 288:
            weight = weight.view(9, 32, -1).transpose(0, 1).reshape(288, -1)
        if module.out_features == 288:
            weight = weight.view(-1, 9, 32).transpose(1, 2).reshape(-1, 288)
        return weight.T
    return weight
