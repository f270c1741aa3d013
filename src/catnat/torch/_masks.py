"""Classes that are not allowed: renormalise what is left, or prune the tree.

Renormalising divides by the mass of the allowed classes. Pruning sends a node's mass to its live side: each node then
still has its own coin, so paths stay short and the Fisher matrix stays diagonal; the two differ in where the forbidden
mass goes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from catnat.torch import _eager
from catnat.torch._plan import Plan


def renormalize(log_p: Tensor, mask: Tensor) -> Tensor:
    """log p of the allowed classes given that one of them comes up; -inf elsewhere, never NaN."""
    # A row with nothing allowed is all -inf in the end; until then it is treated as if all were.
    usable = mask | ~mask.any(-1, keepdim=True)
    allowed = torch.where(usable, log_p, -torch.inf)
    # Allowed classes without any mass (floor=0) share it evenly.
    massless = (allowed == -torch.inf).all(-1, keepdim=True)
    allowed = torch.where(massless, torch.where(usable, 0.0, -torch.inf), allowed)
    return torch.where(mask, allowed - allowed.logsumexp(-1, keepdim=True), -torch.inf)


def live_branches(mask: Tensor, plan: Plan, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Whether the left and the right branch of every node leads to an allowed class: [..., K-1] each."""
    left, right = eager.ascend(mask.to(dtype), plan)
    return left > 0, right > 0


def prune(log_left: Tensor, log_right: Tensor, mask: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Branch log-probabilities with the whole mass of every half-dead node on its live side."""
    left_lives, right_lives = live_branches(mask, plan, log_left.dtype)
    only_left, only_right = left_lives & ~right_lives, right_lives & ~left_lives
    return (
        torch.where(only_left, 0.0, torch.where(only_right, -torch.inf, log_left)),
        torch.where(only_right, 0.0, torch.where(only_left, -torch.inf, log_right)),
    )


class PrunedCoins(eager.Coins):
    """Coins of the pruned tree: a dead branch is never taken, a lone one always."""

    def __init__(self, x: Tensor, mask: Tensor, plan: Plan) -> None:
        super().__init__(x)
        self.free = eager.coins_of(x, plan)
        self.left_lives, self.right_lives = live_branches(mask, plan, x.dtype)

    def mint(self, uniforms: Tensor) -> Tensor:
        """As for free coins."""
        return self.free.mint(uniforms)

    def toss(self, minted: Tensor, nodes: Tensor | None) -> Tensor:
        """Right where only that lives, or where both do and the free coin says so."""
        left, right = eager.row_values(self.left_lives, nodes), eager.row_values(self.right_lives, nodes)
        return right & (~left | self.free.toss(minted, nodes))


def coins_of_masses(probabilities: Tensor, plan: Plan) -> eager.Coins:
    """Coins that give the classes these probabilities: the mass on the right of a node by all its mass."""
    left, right = eager.ascend(probabilities, plan)
    # a side without mass is never taken, not even by rounding
    return eager.Coins(torch.where(left > 0, right / torch.where(left > 0, left + right, 1.0), (right > 0).to(right)))
