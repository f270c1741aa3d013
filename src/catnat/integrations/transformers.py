"""catnat in Hugging Face's transformers: a mixin that gives a model a catnat head."""

from __future__ import annotations

import re
from typing import Any

from catnat.integrations import needs

with needs(__name__, "transformers 5.22"):
    import transformers  # noqa: F401

import torch
from torch import Tensor

import catnat
import catnat.torch as ct

__all__ = ["CatnatHead"]

TASKS = re.compile(
    r"For(Sequence|Token|Image|Audio|Video)Classification$|For(CausalLM|MaskedLM|ConditionalGeneration)$|LMHeadModel$"
)
RESCALED = {"logit_scale": 1.0, "logits_scaling": 1.0, "final_logit_softcapping": None}  # and what leaves logits alone
Named = list[tuple[str, torch.nn.Linear]]


class _Head(ct.CatnatLinear):
    """Gives log-probabilities in float32: of many classes they lie far from 0, where 16 bits are coarse."""

    def log_probs(self, x: Tensor) -> Tensor:
        scores = self.scores(x)
        return ct.log_catnat(scores.float() if scores.dtype.itemsize < 4 else scores, self.parameterization)


class CatnatHead(torch.nn.Module):
    """Put in front of a model for classification or language modelling: K-1 scores and a catnat in place of K logits.

    The model's ``logits`` are normalised log-probabilities: its loss and `generate` work as they are. The head
    is a `catnat.torch.CatnatLinear`. A checkpoint with a softmax head gives its body alone; the head starts anew,
    and transformers says so. `save_pretrained` and `from_pretrained` keep what changed. The activation is
    ``config.catnat``, a name: "natural" (the default), "sigmoid" or "paper". What is not known to be a choice of one
    class by a softmax of a linear layer is refused.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> from catnat.integrations.transformers import CatnatHead
        >>> class Classifier(CatnatHead, BertForSequenceClassification):
        ...     pass
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=20)
        >>> Classifier(BertConfig(**sizes, num_labels=10)).classifier.linear.out_features
        9
    """

    config: Any  # these are the model's
    loss_type: str | None
    base_model: Any
    get_input_embeddings: Any
    get_output_embeddings: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        theirs = [place for place, kind in enumerate(cls.__mro__) if kind.__module__.startswith("transformers.")]
        if theirs and theirs[0] < cls.__mro__.index(CatnatHead):
            raise TypeError(f"the mixin must come first, else it is a softmax: class {cls.__name__}(CatnatHead, Model)")

    def catnat_parameterization(self, num_classes: int) -> catnat.Parameterization:
        """Which tree and activation; the activation named in the configuration unless overridden.

        What a class overrides is not made from the configuration. The head's saved state defines it all the same: a
        class that makes something else refuses to load it.
        """
        if getattr(self.config, "catnat", None) is None:
            self.config.catnat = "natural"  # so that it is saved, whatever the default becomes
        return catnat.Parameterization(num_classes, self.config.catnat)

    @classmethod
    def from_pretrained(cls, *args: Any, **settings: Any) -> Any:
        """As in transformers; refused where the head was saved with another parameterization."""
        loaded = super().from_pretrained(*args, **settings)  # type: ignore[misc]
        for head in (loaded[0] if isinstance(loaded, tuple) else loaded).modules():
            if isinstance(head, _Head):  # transformers copies what it has read, and asks no module whether it fits
                head.load_state_dict({"definition": head.definition}, strict=False)
        return loaded

    def post_init(self) -> None:
        """Replace the last layer: transformers calls this when all modules stand, before it draws their weights."""
        name, old = self._head()
        pi = self.catnat_parameterization(old.out_features)
        self.set_submodule(name, _Head(old.in_features, pi, bias=old.bias is not None))
        # keep the loss of the model's class: transformers finds it by the class's name, which is now another
        found = [re.search(r"For[A-Z]\w*", name) for name in _their_names(self)]
        self.loss_type = self.loss_type or next((match.group() for match in found if match), None)
        super().post_init()  # type: ignore[misc]

    def _init_weights(self, module: torch.nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[misc]
        if isinstance(module, _Head):  # a softmax's checkpoint has no definition of it, and its layer was drawn above
            super(ct.CatnatLinear, module).reset_parameters()

    def _head(self) -> tuple[str, torch.nn.Linear]:
        """The name of the last layer, and the layer."""
        kind = _their_names(self)[0]
        if not TASKS.search(kind):
            raise ValueError(f"a catnat head takes models for classification or language modelling; got {kind}")
        linear = [(name, m) for name, m in self.named_modules() if isinstance(m, torch.nn.Linear)]
        words = self.get_output_embeddings()
        found = self._of_words(linear, words) if words is not None else self._of_classes(linear)
        if not found:
            raise ValueError(f"no linear layer over the classes was found in {kind}")
        return found[-1]

    def _of_words(self, linear: Named, words: torch.nn.Module) -> Named:
        if self.config.tie_word_embeddings:
            advice = "set tie_word_embeddings=False in the configuration"
            raise ValueError(f"a catnat head's rows are nodes, not words, and no embedding can share them: {advice}")
        for config in (self.config, self.config.get_text_config()):
            for name, neutral in RESCALED.items():
                if getattr(config, name, neutral) not in (None, neutral):
                    why = "the model rescales its logits, and log-probabilities must stay as they are"
                    raise ValueError(f"{why}: {name} must be {neutral}; got {getattr(config, name)}")
        return [(name, module) for name, module in linear if module is words]

    def _of_classes(self, linear: Named) -> Named:
        kind = getattr(self.config, "problem_type", None) or "single_label_classification"
        if kind != "single_label_classification" or self.config.num_labels < 2:
            needed = "problem_type='single_label_classification' and num_labels of at least 2"
            raise ValueError(f"a catnat head needs {needed}; got {kind!r} and {self.config.num_labels}")
        self.config.problem_type = kind
        body = set() if self.base_model is self else {id(module) for module in self.base_model.modules()}
        heads = [(n, m) for n, m in linear if id(m) not in body and m.out_features == self.config.num_labels]
        several = [name for name, _ in heads if "." not in name]
        if len(several) > 1:
            raise ValueError(f"a catnat head takes the place of one layer; there are {', '.join(several)}")
        return heads

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, **settings: Any
    ) -> Any:
        """As in transformers for a classifier; refused for a language model, whose tree has its number of leaves."""
        if self.get_output_embeddings() is None:
            return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, **settings)  # type: ignore[misc]
        leaves = self.get_output_embeddings().num_classes
        if new_num_tokens not in (None, leaves) or pad_to_multiple_of is not None:
            wish = f"has vocab_size = {leaves} leaves, which cannot become {new_num_tokens or 'more'}"
            advice = "set vocab_size in the configuration before the model is made"
            raise ValueError(f"the tree of a catnat head {wish}: {advice}")
        return self.get_input_embeddings()


def _their_names(model: torch.nn.Module) -> list[str]:
    return [kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("transformers.")]
