"""`catnat gsl` and `catnat demo`."""

from catnat_lab.commands.options import Demo, Gsl
from catnat_lab.commands.parts import DATABASE, at_once, chosen, device_of, report_on, run_study, say
from catnat_lab.executors import begin
from catnat_lab.gsl import presets
from catnat_lab.gsl.report import PROVENANCE
from catnat_lab.gsl.search import GraphLearning
from catnat_lab.studies import Study

STACKED = {"cuda": 256, "cpu": 8}  # runs trained as one program: on a CPU few, so that little is lost with a killed one


def gsl(options: Gsl) -> None:
    experiment, device = GraphLearning(chosen(presets.preset(options.preset), options)), device_of(options.device)
    stacked, on = at_once(options.stacked, device, STACKED), (options.on, options.job_gpus)
    with Study(options.storage or options.output / DATABASE, conduct=True, tell=say) as study:
        begin(experiment, study)
        run_study(experiment, study, options.output, device, batch=stacked, note=PROVENANCE, on=on)
        report_on(study, options.output)


def demo(options: Demo) -> None:
    """As `catnat gsl`, with everything chosen."""
    gsl(Gsl(preset="quick", output=options.output, device="cpu"))
