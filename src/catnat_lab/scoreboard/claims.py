"""What the paper claims, mostly in its own words, and what our runs say to it. Every mark is computed."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat_lab import figure
from catnat_lab.report.table import Key
from catnat_lab.scoreboard.boards import Board
from catnat_lab.stats import ALPHA, compare_all, paired

CONFIRMED, OPEN, CONTRADICTED, UNTESTED = "confirmed", "not confirmed", "contradicted", "not tested yet"
RULE = (
    "A claim that one head is better than another is counted over its cells. Ahead or behind: by Welch's test, "
    f"p < {ALPHA} after Holm's correction over the claim. **{CONFIRMED}**: its mean is the better one in at least nine "
    f"of ten, ahead in more than half, behind in none. **{CONTRADICTED}**: by the same rule the reverse is confirmed. "
    f"**{UNTESTED}**: fewer than half were run with the paper's length and number of seeds. **{OPEN}**: all else. "
    "A claim is corrected over its own comparisons and a cell over its table, so their counts differ. "
    "These rules were written when most of the runs were known. How long the paper trained its convolutional VAEs it "
    "does not say, so ours count as long enough, although many means still fell (below). That natural and sigmoid are "
    f"level is **{CONFIRMED}** if the test finds no significant difference and natural is lower in most cells, "
    f"**{CONTRADICTED}** if natural is significantly higher."
)
EXACT = 1e-10  # relative: what rounding alone leaves in float64
DRAWS = "100 draws of 8 classes"
Boards = Mapping[str, Board]


class Finding(NamedTuple):
    mark: str
    statistic: str


def verdict(better: int, ahead: int, behind: int, run: int, total: int) -> str:
    """The rule, of counts of comparisons."""
    if 2 * run < total or not run:
        return UNTESTED
    for mark, means, wins, losses in ((CONFIRMED, better, ahead, behind), (CONTRADICTED, run - better, behind, ahead)):
        if 10 * means >= 9 * run and 2 * wins > run and not losses:
            return mark
    return OPEN


def better(names: str, heads: str, rivals: str, only: str = "", *, ours: bool = False) -> Callable[[Boards], Finding]:
    """Heads against rivals in all cells that the paper has, with ``ours`` in all; ``only``: how their columns start."""

    def judged(boards: Boards) -> Finding:
        pairs, compared, total = {}, set[Key](), 0
        for name, head, rival in itertools.product(names.split(), heads.split(), rivals.split()):
            board = boards[name]
            for group, column in board.table.contests:
                keys = [(group, line, column.key) for line in (head, rival)]
                cells = [board.table.cells[key] for key in keys if key in board.table.cells]
                if len(cells) < 2 or not column.key.startswith(tuple(only.split()) or ""):
                    continue
                total += ours or all(cell.paper_mean is not None for cell in cells)
                if all(cell.summary for cell in cells) and not any(map(board.is_short, keys)):
                    pair = cells[0].values, cells[1].values
                    compared.update(keys)
                    pairs[name, *keys] = pair[::-1] if column.lower_is_better else pair  # so that more is better
        found, run = compare_all(pairs).values(), len(pairs)
        means, sure = (
            sum(each.difference > 0 for each in found),
            [each.difference > 0 for each in found if each.p < ALPHA],
        )
        ahead, behind = sure.count(True), sure.count(False)
        told = [f"better mean in {means}, ahead in {ahead}, behind in {behind} of {run} comparisons"] if run else []
        told += [f"{total - run} of {total} not run, or for less than in the paper"] if run < total else []
        told += _caveats(boards[names], compared) if names in boards else []
        return Finding(verdict(means, ahead, behind, run, total), "; ".join(told))

    return judged


def _caveats(board: Board, keys: Collection[Key]) -> list[str]:
    """Of what was compared: the heads' lost runs in the whole table, and how many means were not at their end."""
    heads = {head for _, head, _ in keys}
    lost = ", ".join(f"{head} {count}" for head, count in board.lost.items() if head in heads)
    told = [f"lost runs: {lost}"] if lost else []
    return told + ([f"still falling: {board.falling(keys)}"] if board.falls else [])


def level(boards: Boards) -> Finding:
    """A t-test over sizes: the kinds of digits of a size share its rate and all else, so they count once."""
    table, gaps = boards["adam"].table, defaultdict[str, list[float]](list)
    for group, column in table.contests:
        natural, sigmoid = (table.cells[group, head, column.key].summary for head in (NATURAL, SIGMOID))
        if natural and sigmoid:
            gaps[column.key].append(natural.mean - sigmoid.mean)
    every, sizes = [gap for some in gaps.values() for gap in some], [fmean(some) for some in gaps.values()]
    if 2 * len(every) < len(list(table.contests)):
        return Finding(UNTESTED, f"{len(every)} cells run")
    p, mean, lower = paired(sizes, [0.0] * len(sizes)), fmean(every), sum(gap < 0 for gap in every)
    mark = CONTRADICTED if p < ALPHA and mean > 0 else CONFIRMED if p >= ALPHA and 2 * lower > len(every) else OPEN
    test = f"t-test over {len(sizes)} sizes, p = {p:.2g}"
    return Finding(mark, f"natural minus sigmoid {mean:+.2f} nats, lower in {lower} of {len(every)} cells; {test}")


def _fisher(activation: catnat.Activation | None) -> tuple[Tensor, Tensor]:
    """Fisher matrices by automatic differentiation at random scores, and nodes' probabilities; None: softmax."""
    scores = torch.randn(100, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    if activation is None:
        logits = torch.nn.functional.pad(scores, (0, 1))
        return ct.fisher_matrix(lambda row: torch.log_softmax(row, -1), logits), logits
    pi = catnat.Parameterization(8, activation)
    return ct.fisher_matrix(lambda row: ct.log_catnat(row, pi), scores), ct.reach(scores, pi)


def dense(boards: Boards) -> Finding:
    entries = _fisher(None)[0].abs()
    least = float((entries.amin((-1, -2)) / entries.amax((-1, -2))).min())
    return Finding(CONFIRMED if least > EXACT else CONTRADICTED, f"no entry below {least:.1g} of the largest; {DRAWS}")


def diagonal(boards: Boards) -> Finding:
    found = torch.stack([_fisher(activation)[0] for activation in (catnat.Sigmoid(), catnat.Natural(tail=0.0))])
    return _exact(found - torch.diag_embed(found.diagonal(dim1=-2, dim2=-1)), "off the diagonal")


def constant(boards: Boards) -> Finding:
    matrices, reach = _fisher(catnat.Natural(tail=0.0))
    return _exact(matrices.diagonal(dim1=-2, dim2=-1) / reach - 0.25, "between an entry divided by P(a) and (π / A)²")


def _exact(error: Tensor, what: str) -> Finding:
    most = float(error.abs().max())
    told = f"less than {EXACT:g}" if most < EXACT else f"up to {most:.2g}"
    return Finding(CONFIRMED if most < EXACT else CONTRADICTED, f"{told} {what}; {DRAWS}")


def direct(boards: Boards) -> Finding:
    """A descent's length divided by the distance it covers, on average over the six starts of `catnat figure`."""
    starts, ratios = torch.tensor(list(itertools.permutations(figure.START))), {}
    for head in figure.heads():
        path, _ = figure.descend(head, starts)
        ratios[head.name] = float((path.diff(dim=0).norm(dim=-1).sum(0) / (path[-1] - path[0]).norm(dim=-1)).mean())
    softmax, _, *trees = ratios.values()
    mark = CONFIRMED if max(trees) < softmax else CONTRADICTED if min(trees) > softmax else OPEN
    told = "; ".join(f"{name}: {ratio:.3f}" for name, ratio in ratios.items())
    return Finding(mark, f"length of a descent divided by its distance, {told}")


SOFTMAX, SPARSEMAX, SIGMOID, NATURAL = "softmax", "sparsemax", "catnat-sigmoid", "catnat-paper"
BOTH, OTHERS = f"{SIGMOID} {NATURAL}", f"{SOFTMAX} {SPARSEMAX} {SIGMOID}"
TESTED = "gsl adam sgd mlp atari"
# a claim, where it stands in the paper and what of it is judged, and the judge
CLAIMS: list[tuple[str, str, Callable[[Boards], Finding]]] = [
    ("The softmax has a dense Fisher Information Matrix.", "proposition 4.1", dense),
    ("Catnat yields a diagonal Fisher Information Matrix.", "theorem 4.2", diagonal),
    ("Natural: the diagonal entries do not depend on the node's own score.", "corollary 4.3", constant),
    ("Catnat yields more direct gradient-descent trajectories.", "figure 1; one rate for all", direct),
    ("Consistently higher test performance.", "abstract; against softmax", better(TESTED, BOTH, SOFTMAX)),
    (
        "Natural is superior in the majority of the cases.",
        "section 5; against sigmoid",
        better(TESTED, NATURAL, SIGMOID),
    ),
    (
        "Graphs: natural outperforms all across all metrics.",
        "section 5.1; against all three",
        better("gsl", NATURAL, OTHERS),
    ),
    (
        "Graphs: natural recovers θ more accurately.",
        "section 5.1; against all three",
        better("gsl", NATURAL, OTHERS, "theta"),
    ),
    (
        "Graphs: natural predicts better (ES, MAE, MSE).",
        "section 5.1; against all three",
        better("gsl", NATURAL, OTHERS, "es pp"),
    ),
    ("VAE, Adam: both catnats beat softmax.", "section 5.2", better("adam", BOTH, SOFTMAX)),
    ("VAE, Adam: both catnats beat sparsemax.", "section 5.2", better("adam", BOTH, SPARSEMAX)),
    ("VAE, Adam: natural slightly better than sigmoid in most settings, equivalent overall.", "section 5.2", level),
    ("VAE, SGD: both catnats beat softmax.", "appendix G", better("sgd", BOTH, SOFTMAX)),
    ("VAE, SGD: both catnats beat sparsemax.", "appendix G", better("sgd", BOTH, SPARSEMAX)),
    ("VAE, dense: catnat outperforms softmax.", "appendix H; sigmoid", better("mlp", SIGMOID, SOFTMAX)),
    (
        "VAE, dense: sigmoid is best for small codes.",
        "appendix H; N = 10, against natural",
        better("mlp", SIGMOID, NATURAL, "10x"),
    ),
    ("PPO: catnat is better than softmax.", "section 5.3; natural", better("atari", NATURAL, SOFTMAX)),
    ("The same on MinAtar.", "not in the paper; natural", better("minatar", NATURAL, SOFTMAX, ours=True)),
]
