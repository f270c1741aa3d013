"""Graph structure learning: recover a random graph from what a graph network computes on it.

Reads top to bottom: `data` draws the graphs, `energy` is the loss and its gradient, `train` trains many runs as one
program, `presets` names the sizes, `search` finds the learning rates and keeps the results, `report` tells them.
"""
