"""R autoencoders as one: their parameters in one matrix [R, P], their heads side by side, and how they step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from catnat_lab.devices import fused
from catnat_lab.heads import natural_reach
from catnat_lab.stack import adam_step, by_head
from catnat_lab.vae.networks import Autoencoder


@dataclass(frozen=True)
class Run:
    """One training run: on which data, by which head, at which rate, from which seed."""

    data: str
    head: str
    rate: float
    seed: int


class Stack:
    """The runs' parameters, buffers and moments. Runs are sorted by head, so that each head sees a slice."""

    def __init__(self, runs: Sequence[Run], model: Autoencoder, optimizer: str, device: torch.device) -> None:
        self.runs, self.model, self.optimizer = list(runs), model, optimizer
        self.adam_step = fused(adam_step, device)
        self.heads = by_head([run.head for run in runs], model.classes)
        self.parted = len(model.encoder.parameters), len(model.encoder.buffers)  # where the decoder's begin
        specs = [*model.encoder.parameters, *model.decoder.parameters]
        self.shapes, self.sizes = [p.shape for p in specs], [p.size for p in specs]
        # drawn on the CPU, so that a seed starts the same on every device and with every head
        starts = []
        for run in runs:
            stream = torch.Generator().manual_seed((run.seed * 1009 + model.variables) * 1009 + model.classes)
            first = [p.center + p.bound * (2 * torch.rand(p.size, generator=stream) - 1) for p in specs]
            starts.append(torch.cat(first))
        self.parameters = torch.stack(starts).to(device).requires_grad_()
        buffers = [*model.encoder.buffers, *model.decoder.buffers]
        self.buffers = [torch.full((len(runs), size), value, device=device) for size, value in buffers]
        self.rates = torch.tensor([run.rate for run in runs], device=device).unsqueeze(1)
        moments = 2 if optimizer == "adam" else 0
        self.moments = [torch.zeros_like(self.parameters, requires_grad=False) for _ in range(moments)]
        self.step = torch.zeros((), dtype=torch.int64, device=device)  # steps taken

    def state(self) -> dict[str, Tensor]:
        named = {f"buffer{i}": b for i, b in enumerate(self.buffers)}
        named |= {f"moment{i}": m for i, m in enumerate(self.moments)}
        return {"parameters": self.parameters.detach(), "step": self.step, **named}

    def trained(self) -> dict[str, Tensor]:
        """What makes the models, by name, on the CPU: [R, ...]."""
        named = {name: value for name, value in self.state().items() if name == "parameters" or "buffer" in name}
        return {name: value.cpu() for name, value in named.items()}

    @torch.no_grad()
    def put(self, trained: dict[str, Tensor]) -> None:
        for name, value in self.state().items():
            if name in trained:
                value.copy_(trained[name])

    def views(self) -> list[Tensor]:
        """The parameters one by one, [R, *shape]; one split, whose gradient is one concatenation."""
        parts = self.parameters.split(self.sizes, 1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def scores(self, x: Tensor, views: list[Tensor], training: bool) -> Tensor:
        """What the encoders make of images [R, B, 784]: [R, B, N, K], of which a head uses the first."""
        p, b = self.parted
        out = self.model.encoder(x, views[:p], self.buffers[:b], training)
        return out.view(*out.shape[:2], self.model.variables, self.model.classes)

    def log_probs(self, scores: Tensor) -> Tensor:
        """log q of every class [R, B, N, K]; -inf where a class has probability 0."""
        return torch.cat([one.log_probs(scores[rows, ..., : one.width]) for rows, one in self.heads])

    def decode(self, z: Tensor, views: list[Tensor], training: bool) -> Tensor:
        """Logits of the pixels [R, B, 784] from one-hot variables [R, B, N, K]."""
        p, b = self.parted
        return self.model.decoder(z.flatten(2), views[p:], self.buffers[b:], training)

    def decoder_matrices(self, views: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        p, b = self.parted
        return self.model.decoder.as_matrices(self.model.variables * self.model.classes, views[p:], self.buffers[b:])

    @torch.no_grad()
    def descend(self, loss: Tensor) -> None:
        """One step, every run at its own rate. Runs share no parameters, so their summed loss serves all."""
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss, self.parameters)
        self.step += 1
        if self.optimizer == "sgd":
            self.parameters.addcmul_(self.rates, gradient, value=-1)
            return
        mean, square = self.moments
        self.adam_step(self.parameters, gradient, mean, square, self.rates, self.step)

    def outside_shares(self, scores: Tensor) -> dict[int, float]:
        """By run, the share of nodes whose score is outside the natural range: where it is clipped, dead ones."""
        found: dict[int, float] = {}
        for rows, one in self.heads:
            pi = getattr(one, "parameterization", None)
            reach = None if pi is None else natural_reach(pi.activation)
            if pi is None or reach is None:
                continue
            centers = torch.tensor(pi.centers, device=scores.device, dtype=scores.dtype)
            far = (scores[rows, ..., : one.width] - centers).abs()
            outside = torch.where(far.isnan(), far, (far >= reach).to(far.dtype)).mean((1, 2, 3))
            found |= dict(zip(range(rows.start, rows.stop), outside.tolist(), strict=True))
        return found
