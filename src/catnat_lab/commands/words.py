"""`catnat words`."""

import torch

from catnat_lab.commands.options import Words
from catnat_lab.commands.parts import chosen, device_of, run_study, say
from catnat_lab.studies import Study
from catnat_lab.words import study
from catnat_lab.words.corpus import Corpus


def words(options: Words) -> None:
    plan, device = chosen(study.preset(options.preset, options.task), options), device_of(options.device)
    corpus = Corpus.load(options.output / f"{plan.task}.npz", plan.task, plan.classes, plan.tokens)
    experiment = study.Words(plan, corpus)

    def timed(held: Study) -> None:
        """Before anything else runs on the device."""
        if set(held.note(study.CLOCK) or {}) < set(plan.heads):
            held.set_note(study.CLOCK, study.clock(experiment, device))
            torch.cuda.empty_cache()  # other processes may train on the same GPU
        seconds = study.whole_time(plan, held.note(study.CLOCK))
        say(f"one after the other, all runs take about {seconds / 60:.1f} minutes and their judging")

    run_study(experiment, options, options.output / plan.task, device, 1, check=timed)
