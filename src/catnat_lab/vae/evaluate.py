"""How good trained autoencoders are: bounds on the log-likelihood of images they have not seen."""

import math

import torch
from torch import Tensor

from catnat_lab.heads import natural_reach
from catnat_lab.vae.data import as_pixels
from catnat_lab.vae.model import PIXELS, Autoencoders, cross_entropy, kl_from_uniform, one_hot

SEED = 20260501  # of the samples: they do not depend on how long a model was trained
ROOM = {"cuda": 1 << 27, "cpu": 1 << 22}  # pixels decoded at once


@torch.no_grad()
def evaluate(stack: Autoencoders, images: Tensor, which: Tensor, drawn: Tensor, samples: int) -> dict[str, Tensor]:
    """[R] means over images uint8 [D, n, 784], from so many samples of the posterior each.

    - nll: minus log of the mean importance weight p(x, z) / q(z | x), which no smaller number of samples lies below;
    - elbo: minus cross-entropy minus the exact KL from the uniform prior;
    - elbo_paper: entropy minus cross-entropy, the same without its constant N log K, as the paper's last table has it;
    - bce and kl: its two parts.
    """
    device, (runs, count) = images.device, (len(which), images.shape[1])
    variables, classes = stack.model.variables, stack.model.classes
    views = [view.detach() for view in stack.views()]
    decode = stack.decoder(views, as_matrices=device.type == "cuda")
    totals = {key: torch.zeros(runs, device=device) for key in ("nll", "bce", "kl")}
    room = max(1, ROOM[device.type] // (PIXELS * runs))
    block = min(count, max(1, room // min(samples, 16)))
    any_drawn = bool(drawn.any())
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        for start in range(0, count, block):
            x = as_pixels(images[which, start : start + block], drawn, any_drawn)
            log_q = stack.log_probs(stack.scores(x, views, training=False))
            here = x.shape[1]
            # a run that diverged must not stop the others: it draws from anything, and its results are NaN anyway
            probs = log_q.exp()
            probs = torch.where(probs.isnan().any(-1, keepdim=True), 1.0, probs).flatten(0, 2)
            best = torch.full((runs, here), -torch.inf, device=device)  # log of the sum of weights so far
            spent = torch.zeros_like(best)
            for done in range(0, samples, max(1, room // here)):
                some = min(max(1, room // here), samples - done)
                index = torch.multinomial(probs, some, replacement=True).view(runs, here, variables, some).mT
                found = cross_entropy(decode(one_hot(index, classes)), x.unsqueeze(2))  # [R, B, s]
                log_posterior = log_q.unsqueeze(2).expand(-1, -1, some, -1, -1).gather(-1, index.unsqueeze(-1))
                weights = -found - variables * math.log(classes) - log_posterior.sum((-1, -2))
                best = torch.logaddexp(best, weights.logsumexp(-1))
                spent += found.sum(-1)
            totals["nll"] -= (best - math.log(samples)).sum(1)
            totals["bce"] += spent.sum(1) / samples
            totals["kl"] += kl_from_uniform(log_q).sum(1)
    means = {key: value / count for key, value in totals.items()}
    means["elbo"] = -means["bce"] - means["kl"]
    return means | {"elbo_paper": means["elbo"] + variables * math.log(classes)}


@torch.no_grad()
def outside_shares(stack: Autoencoders, scores: Tensor) -> dict[int, float]:
    """By run, the share of nodes whose score is outside the natural range: where it is clipped, dead ones."""
    found: dict[int, float] = {}
    for rows, one in stack.heads:
        pi = getattr(one, "parameterization", None)
        reach = None if pi is None else natural_reach(pi.activation)
        if pi is None or reach is None:
            continue
        centers = torch.tensor(pi.centers, device=scores.device, dtype=scores.dtype)
        far = (scores[rows, ..., : one.width] - centers).abs()
        outside = torch.where(far.isnan(), far, (far >= reach).to(far.dtype)).mean((1, 2, 3))
        found |= dict(zip(range(rows.start, rows.stop), outside.tolist(), strict=True))
    return found
