"""`catnat gsl` and `catnat demo`."""

from __future__ import annotations

from dataclasses import replace

from catnat_lab.commands.options import Demo, Gsl
from catnat_lab.commands.parts import DATABASE, device_of, run_study, say, show
from catnat_lab.errors import UserError
from catnat_lab.executors import begin
from catnat_lab.gsl import presets
from catnat_lab.gsl.search import GraphLearning
from catnat_lab.report import gsl as gsl_report
from catnat_lab.report.gsl_remarks import in_one_sentence
from catnat_lab.studies import Study

STACKED = {"cuda": 256, "cpu": 8}  # runs trained as one program: on a CPU few, so that little is lost with a killed one


def gsl(options: Gsl) -> None:
    """Train what is not trained yet, then report."""
    settings, device = settings_of(options), device_of(options.device)
    stacked = STACKED[device.type] if options.stacked is None else options.stacked
    if stacked < 1:
        raise UserError(f"stacked must be at least 1; got {stacked}")
    with Study(options.storage or options.output / DATABASE, conduct=True, tell=say) as study:
        experiment = GraphLearning(settings)
        begin(experiment, study)
        note, on = gsl_report.PROVENANCE, (options.on, options.job_gpus)
        run_study(experiment, study, options.output, device, batch=stacked, note=note, on=on)
        results = gsl_report.load(study)
    show(gsl_report.write_report, [gsl_report.table_of(results)], results, options.output)


def settings_of(options: Gsl) -> presets.Settings:
    """The preset with what was given instead of it."""
    names = ("thetas", "heads", "search", "rates", "seeds", "epochs", "baseline")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    return replace(presets.preset(options.preset), **given)


def demo(options: Demo) -> None:
    """As `catnat gsl`, with everything chosen."""
    gsl(Gsl(preset="quick", output=options.output, device="cpu"))
    with Study(options.output / DATABASE) as study:
        print(in_one_sentence(gsl_report.load(study)))
