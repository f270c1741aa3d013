"""`catnat vae`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from catnat_lab.commands.parts import DATABASE, device_of, run_study, say, show
from catnat_lab.errors import UserError
from catnat_lab.executors import begin
from catnat_lab.experiment import with_tuples
from catnat_lab.report import vae as vae_report
from catnat_lab.studies import Study
from catnat_lab.vae import presets as vae_presets
from catnat_lab.vae.digits import load_digits
from catnat_lab.vae.search import CHECKPOINTS, SOURCE, Autoencoders

VAE_STACKED = {"cuda": 64, "cpu": 8}


@dataclass(frozen=True)
class Vae:
    """The categorical VAE on MNIST, three tables of the paper. Stop it whenever you like: the same command goes on."""

    table: str = "adam"
    """adam, sgd (the convolutional VAE by straight-through samples) or mlp (the dense one by the score function)."""
    preset: str = "quick"
    """smoke (a minute or two), quick (13 minutes on two cores) or paper (all of the table, on a GPU)."""
    output: Path | None = None
    """Folder of the study's database, checkpoints, models and report; by default runs/vae-TABLE."""
    storage: str | None = None
    """Database URL of the study; by default a SQLite file in the output folder."""
    digits: Path | None = None
    """Folder with MNIST's image files; by default they are fetched once and kept in the user's cache."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."""
    on: str = "here"
    """Where jobs are trained: here, processes:N, or on Ray: ray (of this machine) or ray:ADDRESS."""
    job_gpus: float = 1.0
    """What a job on Ray takes of a GPU, where it trains on one; 0.25 lets four share it."""
    stacked: int | None = None
    """How many runs train side by side as one program, at most; by default 64 on a GPU and 8 on a CPU."""
    cells: tuple[str, ...] | None = None
    """VARIABLESxCLASSES, such as 20x16; by default the preset's, as all that follows."""
    data: tuple[str, ...] | None = None
    """Of grey, binary (thresholded) and bernoulli (drawn anew for every batch)."""
    heads: tuple[str, ...] | None = None
    """Of softmax, sparsemax, catnat, catnat-sigmoid, catnat-natural and its forms: see docs/experiments.md, Heads."""
    rates: tuple[float, ...] | None = None
    """The coarse grid of learning rates; one rate alone, with --refined 0, is taken without a search."""
    refined: int | None = None
    """Rates around the best of the coarse grid."""
    searched: tuple[str, ...] | None = None
    """Cells with a search of their own, by default all of --cells; the others take the rates of the nearest one."""
    search_steps: int | None = None
    """Steps of a run of the search."""
    seeds: int | None = None
    """Final runs at the chosen rate."""
    steps: int | None = None
    """Steps of a final run."""
    samples: int | None = None
    """Samples of the posterior to judge a test image by."""

    def settings(self) -> vae_presets.Settings:
        """The preset with what was given instead of it."""
        names = ("cells", "data", "heads", "rates", "refined", "searched", "search_steps", "seeds", "steps", "samples")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if "cells" in given and "searched" not in given:
            given["searched"] = given["cells"]
        return replace(vae_presets.preset(self.preset, self.table), **given)

    def run(self) -> None:
        """Train what is not trained yet, then report."""
        settings, device = self.settings(), device_of(self.device)
        output = self.output or Path(f"runs/vae-{self.table}")
        stacked = VAE_STACKED[device.type] if self.stacked is None else self.stacked
        if stacked < 1:
            raise UserError(f"stacked must be at least 1; got {stacked}")
        digits = load_digits(self.digits)
        with Study(self.storage or output / DATABASE, conduct=True, tell=say) as study:
            both = begin(Autoencoders(settings, digits), study)  # they may be more than is asked for now
            experiment = Autoencoders(vae_presets.Settings(**with_tuples(both)), digits)
            held = {"checksum": digits.checksum, "source": digits.source}
            before = study.settle_note(SOURCE, held)
            if before["checksum"] != held["checksum"]:
                raise UserError(f"this study was begun with other digits: {before['source']}; now {held['source']}")
            say(experiment.cost(study, stacked, device))
            note, on = vae_report.PROVENANCE, (self.on, self.job_gpus)
            run_study(experiment, study, output, device, batch=stacked, note=note, on=on)
            for left in (output / CHECKPOINTS).glob("*"):  # of stacks that went on in other company
                left.unlink(missing_ok=True)
            results = vae_report.load(study)
        show(vae_report.write_report, vae_report.tables_of(results), results, output)
