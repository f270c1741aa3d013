"""A walk: one parameterization's answers to everything that users ask of scores.

Each answer is compiled once for a plan and a shape: outside of `jax.jit` a function of many small operations would be
sent to the device one operation at a time. Scores are [..., K-1] from `_inputs.prepare`, and masks broadcast with their
batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import register_dataclass

from catnat.jax import _classes, _eager, _masks
from catnat.jax._compat import compiled
from catnat.jax._node import branches, is_saturated, log_branches, logit, score_of, slope
from catnat.jax._plan import Plan


@register_dataclass
@dataclass(frozen=True)
class Walk:
    """The interface, and all of it."""

    plan: Plan = field(metadata={"static": True})

    @compiled
    def log_probs(self, x: Array, mask: Array | None = None) -> Array:
        """log p of every class: [..., K]."""
        if mask is None:
            return _classes.walk.bind(x, plan=self.plan)
        classes, _ = _eager.descend(*log_branches(_masks.logits(x, mask, self.plan)), self.plan)
        return jnp.where(mask, classes, -jnp.inf)

    @compiled
    def probs(self, x: Array, mask: Array | None = None) -> Array:
        """p of every class: [..., K]."""
        # not exp: of equal classes it is exactly 1/K
        return jax.nn.softmax(self.log_probs(x, mask), -1)

    @compiled
    def log_prob(self, x: Array, index: Array, mask: Array | None = None) -> Array:
        """log p of ``index``, whose shape broadcasts with the batch of ``x``; NaN where it is out of range."""
        if mask is not None:
            x = jnp.broadcast_to(x, (*jnp.broadcast_shapes(x.shape[:-1], mask.shape[:-1]), x.shape[-1]))
        batch = x.shape[:-1]
        shape = _eager.joint_shape(index, batch, f"the scores' batch {batch}")
        in_range = (index >= 0) & (index < self.plan.num_classes)
        ids = jnp.where(in_range, index, 0)
        extra = len(shape) - len(batch)
        if shape[extra:] == batch:  # samples go last, so that a row's gradient is one row however many samples it has
            samples = math.prod(shape[:extra])
            columns = jnp.moveaxis(jnp.broadcast_to(ids, shape).reshape(samples, *batch), 0, -1)
        else:
            x, columns = jnp.broadcast_to(x, (*shape, x.shape[-1])), jnp.broadcast_to(ids, shape)[..., None]
        # a mask needs the whole row; so does a tree too large for a table of its paths
        if mask is not None or not self.plan.has_paths:
            found = jnp.take_along_axis(self.log_probs(x, mask), columns, -1)
        else:
            found = _eager.log_path(x, columns, self.plan)
        return jnp.where(in_range, jnp.moveaxis(found, -1, 0).reshape(shape), jnp.nan)

    @compiled
    def loss(
        self,
        x: Array,
        labels: Array,
        keep: Array | None,
        mask: Array | None,
        weight: Array | None,
        *,
        reduction: str,
        label_smoothing: float,
    ) -> Array:
        """- log p of labels: class ids [...] or probabilities [..., K]; 0 in rows that are not to ``keep``."""
        by_class = jnp.ones((), x.dtype) if weight is None else weight
        # the share of every class in what smoothing spreads
        share = 1 / self.plan.num_classes if mask is None else mask / mask.sum(-1, keepdims=True, dtype=x.dtype)
        if jnp.issubdtype(labels.dtype, jnp.floating):
            probs = (labels * (1 - label_smoothing) + label_smoothing * share) * by_class
            loss = -_eager.times_log(probs, self.log_probs(x, mask)).sum(-1)
            return _eager.reduced(loss, jnp.ones_like(loss), keep, reduction)
        own = jnp.ones_like(x, shape=labels.shape) if weight is None else weight[labels]
        loss = -_eager.times_log(own, self.log_prob(x, labels, mask))
        if label_smoothing:
            every = self.log_probs(x, mask)
            # each class's part by itself: a sum of K large ones may be no number
            spread = -_eager.times_log(jnp.broadcast_to(label_smoothing * share * by_class, every.shape), every)
            loss = (1 - label_smoothing) * loss + spread.sum(-1)
        return _eager.reduced(loss, own, keep, reduction)

    def branches(self, x: Array, mask: Array | None) -> tuple[Array, Array, Array]:
        """log(1-a), log(a) and the log-probability of being reached, for every node of the tree that a mask leaves."""
        left, right = log_branches(_masks.logits(x, mask, self.plan))
        return left, right, _eager.descend(left, right, self.plan)[1]

    @compiled
    def entropy(self, x: Array, mask: Array | None = None) -> Array:
        """Entropy in nats, node by node."""
        left, right, reached = self.branches(x, mask)
        return (jnp.exp(reached) * (_eager.minus_p_log_p(left) + _eager.minus_p_log_p(right))).sum(-1)

    @compiled
    def kl_divergence(self, p: Array, q: Array, mask: Array | None) -> Array:
        """KL(p || q) in nats, node by node."""
        *p_branches, reached = self.branches(p, mask)
        q_branches = self.branches(q, mask)
        # a node that is never reached counts for nothing, be it infinitely off
        never = reached == -jnp.inf
        sides = [
            _eager.p_log_ratio(jnp.where(never, 0, of_p), jnp.where(never, 0, of_q))
            for of_p, of_q in zip(p_branches, q_branches, strict=False)
        ]
        nodes = sides[0] + sides[1]
        # one that is infinitely off makes the sum so, however rarely it is reached
        return jnp.where(nodes == jnp.inf, nodes, jnp.exp(reached) * nodes).sum(-1)

    @compiled
    def reach(self, x: Array) -> Array:
        """The probability of passing through every node: [..., K-1]."""
        return jnp.exp(self.branches(x, None)[2])

    @compiled
    def fisher_diagonal(self, x: Array) -> Array:
        """The Fisher information of every score: [..., K-1]."""
        deviation = branches(logit(x, self.plan))[2]
        alone = (deviation * slope(x, deviation, self.plan)) ** 2  # a'^2 / (a (1-a))
        return self.reach(x) * alone

    @compiled
    def saturation(self, x: Array) -> Array:
        """The share of nodes beyond the natural range: one number."""
        return is_saturated(x, self.plan).sum() / max(x.size, 1)

    @compiled
    def sample(self, key: Array, x: Array, mask: Array | None, *, count: int) -> Array:
        """``count`` classes a row: [..., count]. Where scores are NaN the answer is K, which is no class."""
        x, plan, are_scores = lax.stop_gradient(x), self.plan, False
        if plan.depth > _eager.MAX_STEPS:  # the same classes on the heap, whose paths are short
            left, right = _masks.log_masses(self.log_probs(x, mask), plan.heap)
            x, plan = jnp.where((left == -jnp.inf) & (right == -jnp.inf), 0, right - left), plan.heap
        elif mask is not None:
            x = _masks.logits(x, mask, plan)
        else:  # their logits are computed where the walk comes by
            are_scores = True

        def logit_at(nodes: Array) -> Array:
            found = jnp.take_along_axis(x, nodes, -1, mode="promise_in_bounds")
            return logit(found, plan, nodes) if are_scores else found

        return _eager.walk_down(key, (*x.shape[:-1], count), plan, logit_at, x)

    @compiled
    def mode(self, x: Array, mask: Array | None) -> Array:
        """The likeliest class of every row, the first of several; K where scores are NaN."""
        log_p = self.log_probs(lax.stop_gradient(x), mask)
        return jnp.where(jnp.isnan(log_p).any(-1), self.plan.num_classes, log_p.argmax(-1)).astype(jnp.int32)

    @compiled
    def scores_of_probs(self, probs: Array) -> Array:
        """Scores [..., K-1] of masses [..., K], which need not sum to one."""
        masses = _eager.ascend(probs, self.plan)
        # a log of 1 in place of that of 0, whose gradient would be infinite
        left, right = (jnp.where(m == 0, -jnp.inf, jnp.log(jnp.where(m == 0, 1, m))) for m in masses)
        return score_of(left, right, self.plan)

    @compiled
    def scores_of_log_probs(self, log_probs: Array) -> Array:
        """The same of masses that are given as logarithms."""
        top = lax.stop_gradient(log_probs.max(-1, keepdims=True))  # taken off first: beside 1e9, log 2 would be lost
        masses = _masks.log_masses(log_probs - jnp.where(jnp.isfinite(top), top, 0), self.plan)
        return score_of(*masses, self.plan)
