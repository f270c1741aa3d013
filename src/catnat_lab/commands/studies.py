"""`catnat gsl` and `demo`, `vae` and `wide-heads`. Each imports its own experiment alone."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from catnat_lab.commands.options import Demo, Gsl, Vae, WideHeads
from catnat_lab.commands.parts import chosen, device_of, run_study, say
from catnat_lab.errors import UserError
from catnat_lab.provenance import provenance
from catnat_lab.studies import Study, command_line

if TYPE_CHECKING:
    from catnat_lab.gsl import train as graphs
    from catnat_lab.vae.study import Settings

ON_CPU = 8  # runs trained as one program: few, so that little is lost with a killed one


def demo(options: Demo) -> None:
    """Two trainings with discrete latents; or, as `catnat gsl`, a graph."""
    if options.what == "graph":
        say("stages: what the true graph reaches (optimal), a search of rates (coarse), new seeds at the best (final)")
        gsl(Gsl(preset="quick", output=options.output / "graph", device="cpu"))
        say("few seeds of a small problem; docs/evidence-graphs.md has the study of the paper's size")
        return
    from catnat_lab.demo import page, study

    say("each head is searched over the same rates, then judged on fresh seeds at its best one")
    folder = options.output / f"latents-{options.seed}"
    found = study.run(study.Demo(options.seed), folder)
    for sentence in found.sentences():
        print(sentence)
    path = page.write_page(found, folder, provenance(command_line()))
    say(f"the page: {path}\nto run it again from the start, delete {folder}")


def gsl_settings(options: Gsl) -> "graphs.Settings":
    from catnat_lab.gsl.train import PRESETS

    return chosen(PRESETS[options.preset], options)


def gsl(options: Gsl) -> None:
    from catnat_lab.gsl.train import GraphLearning

    experiment, device = GraphLearning(gsl_settings(options)), device_of(options.device)
    run_study(experiment, options, options.output, device, stacked(options, device, 256))


def vae_settings(options: Vae) -> "Settings":
    from catnat_lab.vae.study import preset

    given = options if options.searched else replace(options, searched=options.cells)
    return chosen(preset(options.preset, options.table), given)


def vae(options: Vae) -> None:
    from catnat_lab.vae.digits import load_digits
    from catnat_lab.vae.study import CHECKPOINTS, SOURCE, Autoencoders

    settings, device = vae_settings(options), device_of(options.device)
    output, at_once = options.output or Path(f"runs/vae-{options.table}"), stacked(options, device, 64)
    digits = load_digits(options.digits)

    def same_digits(study: Study) -> None:
        held = {"checksum": digits.checksum, "source": digits.source}
        before = study.settle_note(SOURCE, held)
        if before["checksum"] != held["checksum"]:
            raise UserError(f"this study was begun with other digits: {before['source']}; now {held['source']}")

    run_study(Autoencoders(settings, digits), options, output, device, at_once, check=same_digits)
    for left in (output / CHECKPOINTS).glob("*"):  # of stacks that went on in other company
        left.unlink(missing_ok=True)


def stacked(options: Gsl | Vae, device: torch.device, on_gpu: int) -> int:
    if options.stacked is not None and options.stacked < 1:
        raise UserError(f"stacked must be at least 1; got {options.stacked}")
    return options.stacked or (on_gpu if device.type == "cuda" else ON_CPU)


def wide_heads(options: WideHeads) -> None:
    from catnat_lab.wide_heads import train
    from catnat_lab.wide_heads.corpus import Corpus

    device = device_of(options.device)
    name = options.preset if options.preset != "auto" else "full" if device.type == "cuda" else "smoke"
    if name != options.preset:
        say(f"the preset is {name}: {'there is a GPU' if name == 'full' else 'full is for a GPU, and there is none'}")
    plan = chosen(train.PRESETS[name][options.task], options)
    corpus = Corpus.load(options.output / f"{plan.task}.npz", plan.task, plan.classes, plan.tokens)
    experiment = train.WideHeads(plan, corpus)

    def timed(held: Study) -> None:
        """Before anything else runs on the device."""
        if set(held.note(train.CLOCK) or {}) < set(plan.heads):
            held.set_note(train.CLOCK, train.clock(experiment, device))
            torch.cuda.empty_cache()  # other processes may train on the same GPU
        seconds = train.whole_time(plan, held.note(train.CLOCK))
        say(f"one after the other, all runs take about {seconds / 60:.1f} minutes and their judging")

    run_study(experiment, replace(options, preset=name), options.output / plan.task, device, 1, check=timed)
