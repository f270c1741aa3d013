"""`catnat gsl` and `catnat demo`."""

from catnat_lab.commands.options import Demo, Gsl
from catnat_lab.commands.parts import at_once, chosen, device_of, run_study
from catnat_lab.gsl import presets
from catnat_lab.gsl.search import GraphLearning

STACKED = {"cuda": 256, "cpu": 8}  # runs trained as one program: on a CPU few, so that little is lost with a killed one


def gsl(options: Gsl) -> None:
    experiment, device = GraphLearning(chosen(presets.preset(options.preset), options)), device_of(options.device)
    run_study(experiment, options, options.output, device, at_once(options.stacked, device, STACKED))


def demo(options: Demo) -> None:
    """As `catnat gsl`, with everything chosen."""
    gsl(Gsl(preset="quick", output=options.output, device="cpu"))
