"""Variational autoencoders of MNIST's digits, with categorical latent variables."""
