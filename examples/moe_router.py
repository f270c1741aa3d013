"""A small mixture-of-experts language model of Hugging Face's (Mixtral), with catnat routers in place of softmax's.

It learns the characters of Python's own source. Both models have the same load-balancing loss.
Needs: pip install ".[transformers]"
"""

import argparse
import inspect

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from catnat.integrations.transformers import CatnatRouters

text = inspect.getsource(argparse)
letters = sorted(set(text))
codes = torch.tensor([letters.index(c) for c in text])
cut = int(0.9 * len(codes))
train, test = codes[:cut], codes[cut:][: 64 * 128].reshape(-1, 64)
config = MixtralConfig(
    vocab_size=len(letters),
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    num_local_experts=8,
    num_experts_per_tok=2,
    output_router_logits=True,
    router_aux_loss_coef=0.02,
)


class CatnatMixtral(CatnatRouters, MixtralForCausalLM):
    """The same model; a router of eight experts has seven scores."""


def reached(kind, steps=150):
    """Nats per unseen character after 150 steps of Adam at 1e-3, and the share of the most used expert."""
    torch.manual_seed(0)
    model = kind(config)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        rows = train[torch.randint(len(train) - 64, (16, 1)) + torch.arange(64)]
        optimizer.zero_grad()
        model(rows, labels=rows).loss.backward()
        optimizer.step()
    with torch.no_grad():
        out = model.eval()(test)
        nats = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), test[:, 1:].flatten())
        used = torch.stack(out.router_logits).topk(2).indices.flatten().bincount(minlength=8)
    return f"{nats:.3f} nats per character, busiest expert {used.max() / used.sum():.0%}"


print("softmax:", reached(MixtralForCausalLM))
print("catnat: ", reached(CatnatMixtral))
