"""What can be asked for on the command line. Light: what it takes to do it is imported when it is done.

The help is made of the comments, beside an option or above it. An option that is None when it is left out stands for
the preset's setting of its name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import DisallowNone, Positional, arg

QUIET = arg(help_behavior_hint="")  # None tells nothing; what is taken instead is in the option's comment
Whole = Annotated[int | None, DisallowNone, QUIET]
Number = Annotated[float | None, DisallowNone, QUIET]
Text = Annotated[str | None, DisallowNone, QUIET]
Place = Annotated[Path | None, DisallowNone, QUIET]
Texts = Annotated[tuple[str, ...] | None, DisallowNone, arg(metavar="[STR ...]", help_behavior_hint="")]
Numbers = Annotated[tuple[float, ...] | None, DisallowNone, arg(metavar="[FLOAT ...]", help_behavior_hint="")]
Preset = Literal["smoke", "quick", "paper"]


@dataclass(frozen=True)
class _Study:
    preset: str = "quick"
    output: Place = None
    storage: Text = None  # File or URL of the study's database; by default an SQLite file in the output folder.
    device: str = "auto"  # cpu, cuda, cuda:1 ...; auto takes a GPU where there is one.
    on: str = "here"  # Where jobs are trained: here, processes:N, or on Ray: ray (of this machine) or ray:ADDRESS.
    job_gpus: float = 1.0  # What a job on Ray takes of a GPU, where it trains on one; 0.25 lets four share it.


@dataclass(frozen=True)
class Gsl(_Study):
    """Graph structure learning, the paper's first table. Stop it whenever you like: the same command continues."""

    # smoke (seconds), quick (minutes on two cores) or paper (all of the table, on a GPU).
    preset: Preset = "quick"
    output: Path = Path("runs/gsl")  # Folder of the study's database and its report.
    # How many runs train side by side as one program, at most; by default 256 on a GPU and 8 on a CPU.
    stacked: Whole = None
    thetas: Numbers = None  # True edge probabilities; by default the preset's, as all that follows.
    # Of softmax, sparsemax, catnat, catnat-sigmoid, catnat-paper and its forms: see docs/experiments.md, Heads.
    heads: Texts = None
    rates: Numbers = None  # The coarse grid of learning rates.
    seeds: Whole = None  # Final runs at the chosen rate.
    epochs: Whole = None  # Passes over the data.
    baseline: Text = None  # Of the score-function gradient: none, moving-average or leave-one-out.


@dataclass(frozen=True)
class Demo:
    """Softmax and catnat in two trainings with discrete latents, four minutes on two cores; or a random graph."""

    # latents (agents invent a code, and a VAE of digits) or graph (graph structure learning, two to four minutes).
    what: Positional[Literal["latents", "graph"]] = "latents"
    output: Path = Path("demo-output")  # Folder of the runs and the page.
    seed: int = 0  # Another number gives other seeds throughout.


@dataclass(frozen=True)
class Vae(_Study):
    """The categorical VAE on MNIST, three tables of the paper.

    Stop it whenever you like: the same command continues.
    """

    # adam, sgd (the convolutional VAE by straight-through samples) or mlp (the dense one by the score function).
    table: Literal["adam", "sgd", "mlp"] = "adam"
    # smoke (a minute or two), quick (13 minutes on two cores) or paper (all of the table, on a GPU).
    preset: Preset = "quick"
    # Folder of the study's database, checkpoints, models and report; by default runs/vae-TABLE.
    output: Place = None
    # Folder with MNIST's image files; by default they are fetched once and kept in the user's cache.
    digits: Place = None
    # How many runs train side by side as one program, at most; by default 64 on a GPU and 8 on a CPU.
    stacked: Whole = None
    cells: Texts = None  # VARIABLESxCLASSES, such as 20x16; by default the preset's, as all that follows.
    data: Texts = None  # Of grey, binary (thresholded) and bernoulli (drawn anew for every batch).
    # Of softmax, sparsemax, catnat, catnat-sigmoid, catnat-paper and its forms: see docs/experiments.md, Heads.
    heads: Texts = None
    # The coarse grid of learning rates; one rate alone, with --refined 0, is taken without a search.
    rates: Numbers = None
    widen: Whole = None  # Rates that may be added beyond either end of that grid, while the best is at the end.
    refined: Whole = None  # Rates around the best of the coarse grid.
    # Cells with a search of their own, by default those of --cells; the others take the rates of the nearest one.
    searched: Texts = None
    search_seeds: Whole = None  # Runs of the search at every rate.
    search_steps: Whole = None  # Steps of a run of the search.
    seeds: Whole = None  # Final runs at the chosen rate.
    steps: Whole = None  # Steps of a final run.
    samples: Whole = None  # Samples of the posterior to evaluate a test image by.
    # Of mlp's score function: constant (the paper's 125) or leave-one-out, the mean of the batch's other images.
    baseline: Text = None


@dataclass(frozen=True)
class Rl:
    """PPO with any head as its policy. Stop it whenever you like: the same command continues.

    `catnat rl-sweep` searches hyperparameters, `catnat rl-watch` shows a trained policy play, and `catnat rl-minatar`
    trains many seeds at once on small games.
    """

    # An Atari game, such as Breakout or Seaquest, or one of gymnasium's with numbered actions, such as CartPole-v1.
    game: str = "Breakout"
    # The policy's: softmax, sparsemax, catnat (by default), catnat-sigmoid, catnat-paper and its forms.
    head: Text = None
    # smoke (seconds), quick (100,000 steps, minutes on two cores) or paper (Atari's 8 million, on a GPU; 100,000 of
    # gymnasium's games).
    preset: Preset = "quick"
    seed: Whole = None  # Of the weights, the games and the draws; 1 by default.
    output: Place = None  # Folder of the checkpoint and the curves; by default runs/rl/GAME-HEAD-SEED.
    device: str = "auto"  # cpu, cuda, cuda:1 ...; auto takes a GPU where there is one.
    threads: int = 0  # Of the Atari games; 0: one a core.
    minutes: Number = None  # Stop after so many, with a checkpoint.
    steps: Whole = None  # Of all copies of the game together; by default the preset's, as all that follows.
    envs: Whole = None  # Copies of the game.
    rollout: Whole = None  # Steps of every copy between two updates.
    epochs: Whole = None  # Passes over a rollout.
    minibatches: Whole = None  # Parts of a rollout, for one step of Adam each.
    rate: Number = None  # Learning rate.
    clip: Number = None  # Of the probability ratio.
    entropy: Number = None  # Weight of the entropy.
    max_grad_norm: Number = None  # Largest norm of a gradient.
    gae_lambda: Number = None  # Lambda of generalised advantage estimation.


@dataclass(frozen=True)
class RlSweep(_Study):
    """Search hyperparameters by TPE, then train the best over many seeds: the paper's table of reinforcement learning.

    Stop it whenever you like: the same command continues.
    """

    # smoke (seconds), quick (CartPole with default settings, no search, minutes) or paper (both games, 160 trials,
    # then 10 x 10 runs: weeks of a GPU).
    preset: Preset = "quick"
    output: Path = Path("runs/rl-sweep")  # Folder of the study's database and its runs.
    threads: int = 0  # Of the Atari games of one process; 0: one a core.
    minutes: Number = None  # Stop after so many, with a checkpoint.
    games: Texts = None  # Atari games or gymnasium's; by default the preset's, as all that follows.
    heads: Texts = None  # The policies'.
    steps: Whole = None  # Of every run.
    trials: Whole = None  # Of the search, for every game and head; 0: no search, and the default settings are trained.
    best: Whole = None  # Configurations of the search that are trained over the seeds.
    seeds: Whole = None  # Final runs of each.


@dataclass(frozen=True)
class RlMinatar:
    """MinAtar in JAX: many seeds at once, for power that Atari's few seeds cannot have. It needs the extra minatar.

    Stop it whenever you like: the same command continues.
    """

    # smoke (a minute per head), quick (minutes on two cores) or paper (all games, 64 seeds of 10 million steps, a GPU).
    preset: Preset = "quick"
    output: Path = Path("runs/minatar")  # Folder of the study's database, its checkpoint and its report.
    storage: Text = None  # File or URL of the study's database; by default an SQLite file in the output folder.
    on: str = "here"  # Where games and heads are trained: here, one after the other, or processes:N, side by side.
    minutes: Number = None  # Stop after so many, with checkpoints.
    # Of Breakout, Asterix, Freeway, Seaquest and SpaceInvaders; by default the preset's, as all that follows.
    games: Texts = None
    heads: Texts = None  # Softmax and the catnats, also with a tree of the game's actions: 'catnat[[1,3],[0,[2,4]]]'.
    steps: Whole = None  # Of every final run.
    rates: Numbers = None  # Learning rates that are tried; a single one is taken without a search.
    search_steps: Whole = None  # Of every run of the search.
    search_seeds: Whole = None  # Of every rate; they are none of the final ones.
    seeds: Whole = None  # Final runs of every game and head.
    envs: Whole = None  # Copies of the game a run.


@dataclass(frozen=True)
class RlWatch:
    """Show a trained policy play one game: its score, and a GIF, for which gymnasium's games need the extra watch."""

    run: Positional[Path]  # Folder of a run of `catnat rl`.
    gif: Place = None  # Where to write the picture; by default play.gif in that folder.
    seed: int = 12_345  # Of the game and the draws.
    greedy: bool = False  # Take the likeliest action in place of a drawn one.
    steps: int = 27_000  # Stop after so many; a game of Atari has at most 27,000.


@dataclass(frozen=True)
class WideHeads(_Study):
    """How good is a wide head? Language models of source code over very many classes, beside softmax.

    Stop it whenever you like: the same command continues.
    """

    task: Literal["pieces", "words"] = "pieces"  # Pieces of words, 32,768 classes, or whole ones, 200,001.
    preset: Literal["auto", "smoke", "full"] = "auto"  # smoke (seconds) or full; auto is full with a GPU, else smoke.
    # Folder of the tokens, TASK.npz, which are made where they are not there, and of the study, in its folder TASK.
    output: Path = Path("runs/wide-heads")
    # Begin no run that would not end in time, judged by the head's last one; its first one is not judged.
    minutes: Number = None
    heads: Texts = None  # Of those in catnat_lab/wide_heads/heads.py; by default the preset's, as all that follows.
    rates: Numbers = None  # Learning rates that are tried.
    search_steps: Whole = None  # Steps of a run of the search.
    seeds: Whole = None  # Final runs at the chosen rate.
    steps: Whole = None  # Steps of a final run.
    batch: Whole = None  # Rows of a batch, of 128 tokens each.


@dataclass(frozen=True)
class Compare:
    """Does a head help in your model? Searches and judges heads in your own training function.

    FILE.py:FUNCTION is called with a head's name, a rate and a seed, and returns validation and test; docs/compare.md
    has more. Stop it whenever you like: the same command continues.
    """

    what: Positional[tuple[str, ...]]  # FILE.py:FUNCTION; of several tasks NAME=FILE.py:FUNCTION each.
    heads: str = "softmax,natural"  # Names that the function knows, with commas. The others are compared with softmax.
    rates: str = "1e-4..1e-2"  # A range, with two rates a decade, or rates with commas.
    seeds: int = 5  # Repetitions, each of a search and a run on a fresh seed.
    better: Text = None  # lower (a loss) or higher (an accuracy): validation and test. Needed once for a folder.
    output: Path = Path("runs/compare")  # Folder of the study, its page, CSV and JSON.
    # Settings that are searched beside the rate, and handed over by name: tau=0.1..1 or kind=a,b.
    search: tuple[str, ...] = ()
    trials: int = 20  # Of every search of more than the rate.
    jobs: int = 1  # How many runs train side by side, each in a process of its own.
    ray: Text = None  # Address of a Ray cluster that trains instead, or auto.
    gpus: float = 0.0  # Of a GPU, what a run takes on Ray; 0.25 lets four share it.
    prune: bool = False  # Stop runs of the search that look hopeless on their way. It saves time and biases.
    storage: Text = None  # File or URL of the study's database; by default an SQLite file in the output folder.


@dataclass(frozen=True)
class Report:
    """Write the report of a study again, finished or not, or that of a single run of `catnat rl`."""

    where: Positional[str]  # Folder or database URL of the study, or folder of the run.
    output: Place = None  # Folder of the report; by default the study's.


@dataclass(frozen=True)
class Status:
    """What a study has done, is doing and has left; or how far a single run of `catnat rl` is."""

    where: Positional[str]  # Folder or database URL of the study, or folder of the run.


@dataclass(frozen=True)
class Figure:
    """The paper's first figure: loss landscapes of three classes with gradient descent on them, and Fisher matrices."""

    output: Path = Path("demo-output")  # Folder of the picture.


@dataclass(frozen=True)
class Playground:
    """A page to play with: drag scores and see probabilities, Fisher matrices and gradient descent, beside softmax."""

    open: bool = True  # Open it in the browser; its path is printed either way.


# By name, the options of a command and the module whose function of that name does it.
COMMANDS: dict[str, tuple[type, str]] = {
    "demo": (Demo, "studies"),
    "gsl": (Gsl, "studies"),
    "vae": (Vae, "studies"),
    "rl": (Rl, "rl"),
    "rl-sweep": (RlSweep, "studies"),
    "rl-minatar": (RlMinatar, "studies"),
    "rl-watch": (RlWatch, "rl"),
    "compare": (Compare, "compare"),
    "wide-heads": (WideHeads, "studies"),
    "status": (Status, "show"),
    "report": (Report, "show"),
    "figure": (Figure, "show"),
    "playground": (Playground, "playground"),
}
