"""`catnat vae`."""

from dataclasses import replace
from pathlib import Path

from catnat_lab.commands.options import Vae
from catnat_lab.commands.parts import DATABASE, at_once, chosen, device_of, report_on, run_study, say
from catnat_lab.errors import UserError
from catnat_lab.executors import begin
from catnat_lab.experiment import with_tuples
from catnat_lab.studies import Study
from catnat_lab.vae import presets
from catnat_lab.vae.digits import load_digits
from catnat_lab.vae.report import PROVENANCE
from catnat_lab.vae.search import CHECKPOINTS, SOURCE, Autoencoders

STACKED = {"cuda": 64, "cpu": 8}


def vae(options: Vae) -> None:
    given = options if options.searched else replace(options, searched=options.cells)
    settings, device = chosen(presets.preset(options.preset, options.table), given), device_of(options.device)
    output = options.output or Path(f"runs/vae-{options.table}")
    stacked, on = at_once(options.stacked, device, STACKED), (options.on, options.job_gpus)
    digits = load_digits(options.digits)
    with Study(options.storage or output / DATABASE, conduct=True, tell=say) as study:
        both = begin(Autoencoders(settings, digits), study)  # they may be more than is asked for now
        experiment = Autoencoders(presets.Settings(**with_tuples(both)), digits)
        held = {"checksum": digits.checksum, "source": digits.source}
        before = study.settle_note(SOURCE, held)
        if before["checksum"] != held["checksum"]:
            raise UserError(f"this study was begun with other digits: {before['source']}; now {held['source']}")
        run_study(experiment, study, output, device, batch=stacked, note=PROVENANCE, on=on)
        for left in (output / CHECKPOINTS).glob("*"):  # of stacks that went on in other company
            left.unlink(missing_ok=True)
        report_on(study, output)
