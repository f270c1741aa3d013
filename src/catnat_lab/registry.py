"""All experiments that keep a study: the note by which it is known, and the module that reports it.

Such a module has `load`, which reads a study back, and `write_report`, which writes all files of its report into a
folder and returns the path of the page, and the tables to be shown.
"""

from importlib import import_module
from types import ModuleType

from catnat_lab.errors import UserError
from catnat_lab.studies import Study

REPORTERS = {
    "gsl settings": "catnat_lab.gsl.report",
    "vae settings": "catnat_lab.vae.report",
    "rl settings": "catnat_lab.rl.report",
    "minatar settings": "catnat_lab.rl.report",
    "tails settings": "catnat_lab.tails.report",
    "words settings": "catnat_lab.words.report",
}


def reporter_of(study: Study) -> ModuleType:
    """The one that a study belongs to; imported when it is needed."""
    for note, module in REPORTERS.items():
        if study.note(note) is not None:
            return import_module(module)
    raise UserError(f"{study.name} holds no study of {', '.join(note.split()[0] for note in REPORTERS)}")
