"""Graph structure learning: `train` has all of the experiment from the data to the study, `report` tells it."""
