"""The float64 oracle: every public function, in the plainest NumPy, as the judge of every backend.

Scores have shape [..., K-1], probabilities and masks [..., K]; everything runs node by node in the order of the tree.
Nothing here is fast. It is checked against mpmath and, through the backends, against third parties.
"""

import math

import numpy as np
import numpy.typing as npt

from catnat import Activation, Natural, Parameterization, Sigmoid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# -- one node ----------------------------------------------------------------------------------------------------


def activation(scores: Floats, pi: Parameterization) -> tuple[Floats, Floats, Floats, Floats]:
    """log(1-a), log(a), and their slopes d log(1-a)/ds, d log(a)/ds, for every node."""
    scores = np.asarray(scores, dtype=np.float64)
    if isinstance(pi.activation, Natural) and pi.activation.tail == 0:
        return _paper(scores, pi, pi.activation)
    z, slope = logit(scores - pi.centers, pi.activation)
    t = np.exp(-np.abs(z))
    big, small = 1 / (1 + t), t / (1 + t)
    log_0, log_1 = np.minimum(-z, 0) - np.log1p(t), np.minimum(z, 0) - np.log1p(t)
    return log_0, log_1, -slope * np.where(z > 0, big, small), slope * np.where(z > 0, small, big)


def logit(x: Floats, of: Activation | str) -> tuple[Floats, Floats]:
    """The log-odds of the right branch at x - C, and their slope."""
    assert isinstance(of, Activation)
    if isinstance(of, Sigmoid):
        return x, np.ones_like(x)
    if not isinstance(of, Natural):  # one of the user's own: its formula in float64 is all that we know
        return of.logit(x, np), of.slope(x, np)
    # With u the angle to the nearer end of the natural range, the odds are tan(u)^2. At the joint the less likely
    # branch, sin(u)^2, has the probability ``tail``; from there on the line is straight.
    y = x * 2 * math.pi / of.amplitude
    least = math.asin(math.sqrt(of.tail))
    u = np.maximum((math.pi - np.abs(y)) / 4, least)
    beyond = np.maximum(np.abs(y) - (math.pi - 4 * least), 0)
    z = -2 * np.log(np.tan(u)) + beyond / math.sin(2 * least)
    return np.copysign(z, y), 2 * math.pi / of.amplitude / np.sin(2 * u)


def _paper(scores: Floats, pi: Parameterization, natural: Natural) -> tuple[Floats, Floats, Floats, Floats]:
    """The same for ``tail=0``, where all that matters is how far a score is from the ends of its range."""
    lower, lower_rest, upper, upper_rest = natural.edges(pi.centers)
    to_upper, to_lower = (upper - scores) + upper_rest, (scores - lower) - lower_rest
    right = to_upper < to_lower  # the nearer end is the one where a = 1
    distance = np.where(right, to_upper, to_lower)
    alive = distance > natural.margin
    distance = np.maximum(distance, natural.margin)
    # with u the angle to the nearer end: the likelier branch has cos(u)^2, the other sin(u)^2
    u = distance * math.pi / (2 * natural.amplitude)
    with np.errstate(divide="ignore"):
        log_small, log_big = 2 * np.log(np.sin(u)), np.log1p(-(np.sin(u) ** 2))
        rate = np.where(alive, math.pi / natural.amplitude, 0.0)
        tangent, cotangent = np.tan(u), 1 / np.tan(np.where(u > 0, u, 1.0))
    log_0, log_1 = np.where(right, log_small, log_big), np.where(right, log_big, log_small)
    slope_0, slope_1 = -rate * np.where(right, cotangent, tangent), rate * np.where(right, tangent, cotangent)
    return log_0, log_1, slope_0, slope_1


def fisher_of_node(scores: Floats, pi: Parameterization) -> Floats:
    """a'^2 / (a (1-a)): the Fisher information of every node's own coin."""
    log_0, log_1, slope_0, slope_1 = activation(scores, pi)
    return np.exp(log_0) * slope_0**2 + np.exp(log_1) * slope_1**2


# -- the tree ----------------------------------------------------------------------------------------------------


def _walk_down(log_0: Floats, log_1: Floats, pi: Parameterization) -> Floats:
    """[..., 2K] log-probability of passing every place."""
    assert pi.tree is not None
    log_reach = np.zeros((*log_0.shape[:-1], 2 * pi.num_classes))
    for node in range(1, pi.num_classes):
        here = log_reach[..., pi.tree.node_places[node]]
        log_reach[..., 2 * node] = here + log_0[..., node - 1]
        log_reach[..., 2 * node + 1] = here + log_1[..., node - 1]
    return log_reach


def mass_below(values: Floats, pi: Parameterization) -> Floats:
    """[..., 2K] sum of the classes' values at or below every place."""
    assert pi.tree is not None
    total = np.zeros((*values.shape[:-1], 2 * pi.num_classes), dtype=values.dtype)
    total[..., pi.tree.class_places] = values
    for node in range(pi.num_classes - 1, 0, -1):
        total[..., pi.tree.node_places[node]] = total[..., 2 * node] + total[..., 2 * node + 1]
    return total


def log_catnat(scores: Floats, pi: Parameterization, mask: np.ndarray | None = None) -> Floats:
    """log p of every class."""
    assert pi.tree is not None
    log_0, log_1, _, _ = activation(scores, pi)
    log_p = _walk_down(log_0, log_1, pi)[..., pi.tree.class_places]
    if mask is None:
        return log_p
    log_p = np.where(mask, log_p, -np.inf)
    # where the allowed classes have no mass at all, they share it evenly
    log_p = np.where(np.max(log_p, -1, keepdims=True) == -np.inf, np.where(mask, 0.0, -np.inf), log_p)
    top = np.max(log_p, -1, keepdims=True)
    return log_p - (top + np.log(np.sum(np.exp(log_p - top), -1, keepdims=True)))


def catnat(scores: Floats, pi: Parameterization, mask: np.ndarray | None = None) -> Floats:
    """P of every class."""
    return np.exp(log_catnat(scores, pi, mask))


def log_catnat_gradient(scores: Floats, upstream: Floats, pi: Parameterization) -> Floats:
    """The gradient of sum(upstream * log_catnat(scores)) in the scores."""
    _, _, slope_0, slope_1 = activation(scores, pi)
    below = mass_below(upstream, pi)
    return below[..., 2::2] * slope_0 + below[..., 3::2] * slope_1


def log_prob(scores: Floats, index: Ints, pi: Parameterization, mask: np.ndarray | None = None) -> Floats:
    """log p of one class a row."""
    return np.take_along_axis(log_catnat(scores, pi, mask), np.asarray(index)[..., None], -1)[..., 0]


def reach(scores: Floats, pi: Parameterization) -> Floats:
    """P(a_i): the probability of passing through every node."""
    assert pi.tree is not None
    log_0, log_1, _, _ = activation(scores, pi)
    return np.exp(_walk_down(log_0, log_1, pi)[..., pi.tree.node_places[1:]])


# -- summaries ---------------------------------------------------------------------------------------------------


def mode(scores: Floats, pi: Parameterization, mask: np.ndarray | None = None) -> Ints:
    """The likeliest class."""
    return np.argmax(log_catnat(scores, pi, mask), -1)


def entropy(scores: Floats, pi: Parameterization, mask: np.ndarray | None = None) -> Floats:
    """- sum p log p, with 0 log 0 = 0."""
    log_p = log_catnat(scores, pi, mask)
    return -np.sum(np.where(np.isneginf(log_p), 0.0, np.exp(log_p) * np.where(np.isneginf(log_p), 0.0, log_p)), -1)


def kl_divergence(p_scores: Floats, q_scores: Floats, pi: Parameterization) -> Floats:
    """sum p (log p - log q), with 0 log 0 = 0."""
    log_p, log_q = log_catnat(p_scores, pi), log_catnat(q_scores, pi)
    with np.errstate(invalid="ignore"):
        return np.sum(np.where(np.isneginf(log_p), 0.0, np.exp(log_p) * (log_p - log_q)), -1)


def cross_entropy(scores: Floats, target: Ints, pi: Parameterization) -> Floats:
    """- log p of the target, row by row."""
    return -log_prob(scores, target, pi)


def scores_from_probs(probs: Floats, pi: Parameterization) -> Floats:
    """Scores whose catnat is ``probs``; 0 at nodes that are never reached."""
    assert not isinstance(pi.activation, str)
    below = mass_below(np.asarray(probs, dtype=np.float64), pi)
    left, right = below[..., 2::2], below[..., 3::2]
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.log(right) - np.log(left)
        x = pi.activation.inverse(z, np)
        if isinstance(pi.activation, Natural):
            limit = np.log(pi.activation.tail) - np.log1p(-pi.activation.tail)
            inside = np.clip(z, limit, -limit)
            beyond = np.where(z == inside, 0.0, (z - inside) / pi.activation.steepest)
            y = 4 * np.arctan(np.exp(inside / 2)) - math.pi + beyond
            x = y * pi.activation.amplitude / (2 * math.pi)
    return np.where(left + right > 0, x + pi.centers, 0.0)


# -- Fisher ------------------------------------------------------------------------------------------------------


def fisher_diagonal(scores: Floats, pi: Parameterization) -> Floats:
    """Theorem 1: P(a_i) a'^2 / (a (1-a)), the whole Fisher matrix of a catnat."""
    return reach(scores, pi) * fisher_of_node(scores, pi)


def fisher_matrix(scores: Floats, pi: Parameterization) -> Floats:
    """E[grad log p grad log p^T] summed over the classes: dense, with no use of Theorem 1."""
    shape = (*scores.shape[:-1], pi.num_classes)
    rows = (np.broadcast_to(row, shape) for row in np.eye(pi.num_classes))
    gradients = np.stack([log_catnat_gradient(scores, row, pi) for row in rows], -2)  # [..., K, K-1]
    return np.einsum("...k,...ki,...kj->...ij", catnat(scores, pi), gradients, gradients)


def softmax(logits: Floats) -> Floats:
    """P of every class of the rival."""
    shifted = np.exp(logits - np.max(logits, -1, keepdims=True))
    return shifted / np.sum(shifted, -1, keepdims=True)


def softmax_fisher(logits: Floats) -> Floats:
    """Proposition 1: diag(p) - p p^T."""
    p = softmax(logits)
    return p[..., None] * np.eye(p.shape[-1]) - p[..., :, None] * p[..., None, :]


def natural_gradient(scores: Floats, gradient: Floats, pi: Parameterization, damping: float = 0.0) -> Floats:
    """The gradient divided by the Fisher diagonal plus ``damping``; 0 where both are 0."""
    divisor = fisher_diagonal(scores, pi) + damping
    return np.where(divisor > 0, gradient / np.where(divisor > 0, divisor, 1.0), 0.0)
