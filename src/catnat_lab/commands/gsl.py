"""`catnat gsl` and `catnat demo`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from catnat_lab.commands.parts import DATABASE, device_of, run_study, say, show
from catnat_lab.errors import UserError
from catnat_lab.executors import begin
from catnat_lab.gsl import presets
from catnat_lab.gsl.search import GraphLearning
from catnat_lab.report import gsl as gsl_report
from catnat_lab.report.gsl_remarks import in_one_sentence
from catnat_lab.studies import Study

STACKED = {"cuda": 256, "cpu": 8}  # runs trained as one program: on a CPU few, so that little is lost with a killed one


@dataclass(frozen=True)
class Gsl:
    """Graph structure learning, the paper's first table. Stop it whenever you like: the same command goes on."""

    preset: str = "quick"
    """smoke (seconds), quick (minutes on two cores) or paper (all of the table, on a GPU)."""
    output: Path = Path("runs/gsl")
    """Folder of the study's database and its report."""
    storage: str | None = None
    """Database URL of the study; by default a SQLite file in the output folder."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."""
    on: str = "here"
    """Where jobs are trained: here, processes:N, or on Ray: ray (of this machine) or ray:ADDRESS."""
    job_gpus: float = 1.0
    """What a job on Ray takes of a GPU, where it trains on one; 0.25 lets four share it."""
    stacked: int | None = None
    """How many runs train side by side as one program, at most; by default 256 on a GPU and 8 on a CPU."""
    thetas: tuple[float, ...] | None = None
    """True edge probabilities; by default the preset's, as all that follows."""
    heads: tuple[str, ...] | None = None
    """Of softmax, sparsemax, catnat, catnat-sigmoid, catnat-natural and its forms: see docs/experiments.md, Heads."""
    search: str | None = None
    """How rates are searched: grid or tpe."""
    rates: tuple[float, ...] | None = None
    """The coarse grid of learning rates."""
    seeds: int | None = None
    """Final runs at the chosen rate."""
    epochs: int | None = None
    """Passes over the data."""
    baseline: str | None = None
    """Of the score-function gradient: none, moving-average or leave-one-out."""

    def settings(self) -> presets.Settings:
        """The preset with what was given instead of it."""
        names = ("thetas", "heads", "search", "rates", "seeds", "epochs", "baseline")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(presets.preset(self.preset), **given)

    def run(self) -> None:
        """Train what is not trained yet, then report."""
        settings, device = self.settings(), device_of(self.device)
        stacked = STACKED[device.type] if self.stacked is None else self.stacked
        if stacked < 1:
            raise UserError(f"stacked must be at least 1; got {stacked}")
        with Study(self.storage or self.output / DATABASE, conduct=True, tell=say) as study:
            experiment = GraphLearning(settings)
            begin(experiment, study)
            note, on = gsl_report.PROVENANCE, (self.on, self.job_gpus)
            run_study(experiment, study, self.output, device, batch=stacked, note=note, on=on)
            results = gsl_report.load(study)
        show(gsl_report.write_report, [gsl_report.table_of(results)], results, self.output)


@dataclass(frozen=True)
class Demo:
    """The quick comparison of graph structure learning on this machine's CPU, some minutes on two cores."""

    output: Path = Path("demo-output")
    """Folder of the study and its report."""

    def run(self) -> None:
        """As `catnat gsl`, with everything chosen."""
        Gsl(preset="quick", output=self.output, device="cpu").run()
        with Study(self.output / DATABASE) as study:
            print(in_one_sentence(gsl_report.load(study)))
