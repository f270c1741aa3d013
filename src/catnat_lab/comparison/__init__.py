"""Does a head help in a model of anybody's? run.py asks, study.py trains, report.py answers."""
