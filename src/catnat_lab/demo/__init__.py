"""`catnat demo`: softmax and catnat in two trainings with discrete latents, each at its best rate, on fresh seeds."""
