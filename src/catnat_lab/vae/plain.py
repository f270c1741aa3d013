"""The convolutional autoencoder in torch.nn: one trained run as ordinary modules, to use elsewhere and to check by."""

import torch
from torch import Tensor, nn

from catnat_lab.vae.stack import Stack


def modules(variables: int, classes: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder [B, 1, 28, 28] to [B, N * K] and decoder [B, N * K] to logits [B, 1, 28, 28], freshly initialized."""
    encoder = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 0),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 128),
        nn.ReLU(),
        nn.Linear(128, variables * classes),
    )
    decoder = nn.Sequential(
        nn.Linear(variables * classes, 128),
        nn.ReLU(),
        nn.Linear(128, 288),
        nn.ReLU(),
        nn.Unflatten(1, (32, 3, 3)),
        nn.ConvTranspose2d(32, 16, 3, 2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 3, 2, 1, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),
    )
    return encoder, decoder


@torch.no_grad()
def export(stack: Stack, row: int) -> tuple[nn.Sequential, nn.Sequential]:
    """One run of a stack of convolutional autoencoders, as modules on the CPU."""
    encoder, decoder = modules(stack.model.variables, stack.model.classes)
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
