"""The framework-free core: trees, activations, the checks."""
