"""log_catnat against jax.nn.log_softmax on a GPU: 20 calls a round without a wait in between, 15 interleaved rounds.

This is what made jax-gpu-back-to-back.csv. `python -m benchmarks --backend jax` has since learnt to time so itself.
"""

import statistics as st
import time

import jax

import catnat.jax as cj


def vg(f):
    """Value and gradient of a weighted sum."""
    return jax.jit(jax.value_and_grad(lambda x, w: (f(x) * w).sum()))


for K in (8192, 131072, 32, 8, 128, 1024):
    r = (1 << 26) // K
    k = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(k[0], (r, K - 1))
    y, w = jax.random.normal(k[1], (r, K)), jax.random.normal(k[2], (r, K))
    F = {
        "softmax": (vg(jax.nn.log_softmax), y),
        "sigmoid": (vg(lambda s: cj.log_catnat(s, "sigmoid")), x),
        "natural": (vg(lambda s: cj.log_catnat(s)), x),
    }
    for f, a in F.values():
        jax.block_until_ready(f(a, w))
    T = {n: [] for n in F}
    for _ in range(15):
        for n, (f, a) in F.items():
            t = time.perf_counter()
            for _ in range(20):
                o = f(a, w)
            jax.block_until_ready(o)
            T[n].append((time.perf_counter() - t) / 20)
    ratios = (st.median([p / q for p, q in zip(T[n], T["softmax"], strict=True)]) for n in ("sigmoid", "natural"))
    print(K, round(st.median(T["softmax"]) * 1e6), *(f"{value:.3f}" for value in ratios), flush=True)
