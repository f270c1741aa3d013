"""The framework-free core: trees, activations, the oracle, the checks."""
