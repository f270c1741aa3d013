"""What the tables of the benchmark of latents say of runs that were repeated."""

from catnat_lab.latents.records import Job
from catnat_lab.latents.report import report
from catnat_lab.latents.rule import FIRST_ESTIMATOR, Rule
from catnat_lab.latents.train import Cell, Run


def test_a_control_stands_beside_the_same_seeds_and_other_seeds_beside_all() -> None:
    cell, rule = Cell(2, 4, FIRST_ESTIMATOR), Rule(sizes=((2, 4),), final_seeds=4)
    bounds = {
        ("final", "softmax"): {1: 10.0, 2: 11.0, 3: 50.0, 4: 60.0},
        ("final", "catnat"): {1: 8.0, 2: 9.5, 3: 70.0, 4: 90.0},
        ("control", "softmax"): {1: 10.2, 2: 11.2},
        ("control", "catnat"): {1: 8.1, 2: 9.1},
        ("again", "softmax"): {101: 20.0, 102: 22.0},
        ("again", "catnat"): {101: 20.0, 102: 21.0},
    }
    done = {
        Job(stage, cell, Run(head, 0.1, 1.0, seed)): {"test": test, "train": test}
        for (stage, head), tests in bounds.items()
        for seed, test in tests.items()
    }
    control, again = (line for line in report(done, rule).splitlines() if line.startswith(("| control", "| again")))
    assert control.startswith("| control | 2x4 | 10.50 (2) | 8.75 (2) | 10.70 (2) | 8.60 (2) | -1.75 [")
    assert "] | -2.10 [" in control
    assert again.startswith("| again | 2x4 | 32.75 (4) | 44.38 (4) | 21.00 (2) | 20.50 (2) | +11.62 [")
