"""How natural should it be? One number, `tail`, from the sigmoid to the paper's natural activation, on many tasks."""
