"""`catnat vae`."""

from dataclasses import replace
from pathlib import Path

from catnat_lab.commands.options import Vae
from catnat_lab.commands.parts import at_once, chosen, device_of, run_study
from catnat_lab.errors import UserError
from catnat_lab.studies import Study
from catnat_lab.vae import presets
from catnat_lab.vae.digits import load_digits
from catnat_lab.vae.search import CHECKPOINTS, SOURCE, Autoencoders

STACKED = {"cuda": 64, "cpu": 8}


def vae(options: Vae) -> None:
    given = options if options.searched else replace(options, searched=options.cells)
    settings, device = chosen(presets.preset(options.preset, options.table), given), device_of(options.device)
    output, stacked = options.output or Path(f"runs/vae-{options.table}"), at_once(options.stacked, device, STACKED)
    digits = load_digits(options.digits)

    def same_digits(study: Study) -> None:
        held = {"checksum": digits.checksum, "source": digits.source}
        before = study.settle_note(SOURCE, held)
        if before["checksum"] != held["checksum"]:
            raise UserError(f"this study was begun with other digits: {before['source']}; now {held['source']}")

    run_study(Autoencoders(settings, digits), options, output, device, stacked, check=same_digits)
    for left in (output / CHECKPOINTS).glob("*"):  # of stacks that went on in other company
        left.unlink(missing_ok=True)
