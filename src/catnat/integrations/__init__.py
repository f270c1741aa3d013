"""catnat inside other libraries, one module per library; each is imported by its name alone."""
