"""`catnat tails`."""

from catnat_lab.commands.options import Tails
from catnat_lab.commands.parts import device_of, run_study
from catnat_lab.tails import study
from catnat_lab.tails.presets import tasks_of


def tails(options: Tails) -> None:
    device = device_of(options.device)
    tasks = tasks_of(options.tasks, options.preset, options.digits, options.corpus or options.output / "corpus.npz")
    run_study(study.Tails(tasks), options, options.output, device, max(task.at_once for task in tasks))
