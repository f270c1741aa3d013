"""`catnat vae`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from catnat_lab.commands.options import Vae
from catnat_lab.commands.parts import DATABASE, device_of, run_study, say, show
from catnat_lab.errors import UserError
from catnat_lab.executors import begin
from catnat_lab.experiment import with_tuples
from catnat_lab.report import vae as vae_report
from catnat_lab.studies import Study
from catnat_lab.vae import presets as vae_presets
from catnat_lab.vae.digits import load_digits
from catnat_lab.vae.search import CHECKPOINTS, SOURCE, Autoencoders

STACKED = {"cuda": 64, "cpu": 8}


def vae(options: Vae) -> None:
    """Train what is not trained yet, then report."""
    settings, device = settings_of(options), device_of(options.device)
    output = options.output or Path(f"runs/vae-{options.table}")
    stacked = STACKED[device.type] if options.stacked is None else options.stacked
    if stacked < 1:
        raise UserError(f"stacked must be at least 1; got {stacked}")
    digits = load_digits(options.digits)
    with Study(options.storage or output / DATABASE, conduct=True, tell=say) as study:
        both = begin(Autoencoders(settings, digits), study)  # they may be more than is asked for now
        experiment = Autoencoders(vae_presets.Settings(**with_tuples(both)), digits)
        held = {"checksum": digits.checksum, "source": digits.source}
        before = study.settle_note(SOURCE, held)
        if before["checksum"] != held["checksum"]:
            raise UserError(f"this study was begun with other digits: {before['source']}; now {held['source']}")
        say(experiment.cost(study, stacked, device))
        note, on = vae_report.PROVENANCE, (options.on, options.job_gpus)
        run_study(experiment, study, output, device, batch=stacked, note=note, on=on)
        for left in (output / CHECKPOINTS).glob("*"):  # of stacks that went on in other company
            left.unlink(missing_ok=True)
        results = vae_report.load(study)
    show(vae_report.write_report, vae_report.tables_of(results), results, output)


def settings_of(options: Vae) -> vae_presets.Settings:
    """The preset with what was given instead of it."""
    names = ("cells", "data", "heads", "rates", "refined", "searched", "search_steps", "seeds", "steps", "samples")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if "cells" in given and "searched" not in given:
        given["searched"] = given["cells"]
    return replace(vae_presets.preset(options.preset, options.table), **given)
