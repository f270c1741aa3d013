"""Six places where people draw Gumbel-softmax samples, each a file that `catnat compare` takes."""
