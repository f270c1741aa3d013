"""The benchmark of categorical latent variables: heads, estimators and sizes, by results/latents/RULE.md."""
