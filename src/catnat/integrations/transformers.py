"""catnat in Hugging Face's transformers: mixins that give a model a catnat head, or catnat routers.

Put a mixin in front of a model's class. `save_pretrained` and `from_pretrained` of the new class then keep what it
changed. The activation is ``config.catnat``, a name: "natural" (the default), "sigmoid" or "paper".
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

import catnat
import catnat.torch as ct

__all__ = ["CatnatHead", "CatnatRouters"]


class _Catnat(torch.nn.Module):
    """What the two mixins share: the configuration says which parameterization."""

    config: Any  # this and the next four are the model's
    loss_type: str | None
    base_model: Any
    get_input_embeddings: Any
    get_output_embeddings: Any

    def catnat_parameterization(self) -> catnat.Parameterization | catnat.Activation | str:
        """Which tree and activation; the name in the configuration unless overridden."""
        if getattr(self.config, "catnat", None) is None:
            self.config.catnat = "natural"  # so that it is saved, whatever the default becomes
        return self.config.catnat

    def post_init(self) -> None:
        """Keep the loss of the model's class: transformers finds it by the class's name, which is now another."""
        names = [kind.__name__ for kind in type(self).__mro__ if kind.__module__.startswith("transformers.")]
        found = [re.search(r"For[A-Z]\w*", name) for name in names]
        self.loss_type = self.loss_type or next((match.group() for match in found if match), None)
        super().post_init()  # type: ignore[misc]


class CatnatHead(_Catnat):
    """Put in front of a model for classification or language modelling: K-1 scores and a catnat in place of K logits.

    The model's ``logits`` are normalised log-probabilities: its loss and `generate` work as they are. The head
    is a `catnat.torch.CatnatLinear`. A checkpoint with a softmax head gives its body alone; the head starts anew,
    and transformers says so.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> from catnat.integrations.transformers import CatnatHead
        >>> class Classifier(CatnatHead, BertForSequenceClassification):
        ...     pass
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=20)
        >>> Classifier(BertConfig(**sizes, num_labels=10)).classifier.linear
        Linear(in_features=8, out_features=9, bias=True)
    """

    def post_init(self) -> None:
        """Replace the last layer: transformers calls this when all modules stand, before it draws their weights."""
        name, old = self._head()
        parent = self.get_submodule(name.rpartition(".")[0])
        bias = old.bias is not None
        head = ct.CatnatLinear(old.in_features, old.out_features, self.catnat_parameterization(), bias=bias)
        setattr(parent, name.rpartition(".")[2], head)
        super().post_init()

    def _head(self) -> tuple[str, torch.nn.Linear]:
        """The name of the last layer, and the layer."""
        linear = [(name, m) for name, m in self.named_modules() if isinstance(m, torch.nn.Linear)]
        words = self.get_output_embeddings()
        if words is not None:
            if self.config.tie_word_embeddings:
                raise ValueError(
                    "a catnat head cannot share the embedding's weights, for its rows are nodes and not words: "
                    "set tie_word_embeddings=False in the configuration"
                )
            found = [(name, module) for name, module in linear if module is words]
        else:
            kind = getattr(self.config, "problem_type", None) or "single_label_classification"
            if kind != "single_label_classification" or self.config.num_labels < 2:
                raise ValueError(
                    "a catnat head needs problem_type='single_label_classification' and num_labels of at least 2; "
                    f"got {kind!r} and {self.config.num_labels}"
                )
            self.config.problem_type = kind
            body = {id(module) for module in self.base_model.modules()}
            found = [(n, m) for n, m in linear if id(m) not in body and m.out_features == self.config.num_labels]
        if not found:
            raise ValueError(f"no linear layer over the classes was found in {type(self).__name__}")
        return found[-1]

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, **settings: Any
    ) -> Any:
        """As in transformers for a classifier; refused for a language model, whose tree has its number of leaves."""
        if self.get_output_embeddings() is None:
            return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, **settings)  # type: ignore[misc]
        if new_num_tokens not in (None, self.config.vocab_size) or pad_to_multiple_of is not None:
            raise ValueError(
                f"the tree of a catnat head has vocab_size = {self.config.vocab_size} leaves, which cannot become "
                f"{new_num_tokens or 'more'}: set vocab_size in the configuration before the model is made"
            )
        return self.get_input_embeddings()


class CatnatRouters(_Catnat):
    """Put in front of a mixture-of-experts model (Mixtral, OLMoE, Qwen-MoE): its routers become catnats of E-1 scores.

    The routers' ``router_logits`` are normalised log-probabilities, from which the load-balancing loss is computed as
    before. Routers that are more than a softmax of a linear layer are refused.

    Example:
        >>> from transformers import MixtralConfig, MixtralForCausalLM
        >>> from catnat.integrations.transformers import CatnatRouters
        >>> class Model(CatnatRouters, MixtralForCausalLM):
        ...     pass
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
        >>> model = Model(MixtralConfig(**sizes, intermediate_size=8, vocab_size=20, num_local_experts=4))
        >>> model.model.layers[0].mlp.gate.weight.shape
        torch.Size([3, 8])
    """

    def post_init(self) -> None:
        """Turn every router: transformers calls this when all modules stand, before it draws their weights."""
        routers: list[Any] = [module for module in self.modules() if type(module).__name__.endswith("TopKRouter")]
        if not routers:
            raise ValueError(f"no router was found in {type(self).__name__}")
        for router in routers:
            if [name for name, _ in router.named_parameters()] != ["weight"] or any(True for _ in router.buffers()):
                raise ValueError(f"{type(router).__name__} is more than a softmax of a linear layer")
            # a subclass of what it was: by that class transformers draws a router's weights and records its outputs
            router.__class__ = type(f"Catnat{type(router).__name__}", (_Router, type(router)), {})
            router.weight = torch.nn.Parameter(router.weight[1:].clone())
            router.parameterization = self.catnat_parameterization()
        super().post_init()


class _Router(torch.nn.Module):
    """A router that was a softmax of a linear layer."""

    weight: torch.nn.Parameter
    parameterization: catnat.Parameterization | catnat.Activation | str
    top_k: int

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of all experts, the weights of the chosen ones, and which they are."""
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        scores = torch.nn.functional.linear(rows, self.weight)
        log_p = ct.log_catnat(scores.float(), self.parameterization)
        weights, experts = log_p.exp().topk(self.top_k, dim=-1)
        if getattr(self, "norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdim=True)
        return log_p, weights.to(scores.dtype), experts
