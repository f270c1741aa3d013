"""The evidence for catnat: the paper's experiments, run, resumed, compared with its numbers and drawn."""
