"""catnat inside other libraries, one module per library, each with an extra of its name.

Nothing is imported here: `import catnat.integrations.sb3` imports Stable-Baselines3, and no other library.
"""
