"""catnat in Hugging Face's transformers, on tiny models with random weights: values, training, saving and loading."""

from __future__ import annotations

import os

import pytest
import torch
from torch.testing import assert_close

import catnat
import catnat.torch as ct
from catnat.integrations.transformers import CatnatHead
from catnat_lab import reference

os.environ["HF_HUB_OFFLINE"] = "1"
hf = pytest.importorskip("transformers", reason="transformers is not installed")
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

WORDS, LABELS = 30, 5
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=WORDS)
IDS = torch.randint(2, WORDS, (3, 7), generator=torch.Generator().manual_seed(0))


class Bert(CatnatHead, hf.BertForSequenceClassification):
    pass


class Roberta(CatnatHead, hf.RobertaForSequenceClassification):
    pass  # its last layer is not called classifier


class Tagger(CatnatHead, hf.BertForTokenClassification):
    pass


class Vit(CatnatHead, hf.ViTForImageClassification):
    pass


class Masked(CatnatHead, hf.BertForMaskedLM):
    pass


class Llama(CatnatHead, hf.LlamaForCausalLM):
    pass


class Gpt2(CatnatHead, hf.GPT2LMHeadModel):
    pass


def bert(**settings):
    return hf.BertConfig(**SIZES, **{"num_labels": LABELS, **settings})


def gpt2(**settings):
    return hf.GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=WORDS, **settings)


def llama(**settings):
    return hf.LlamaConfig(**SIZES, num_key_value_heads=1, pad_token_id=0, **settings)


PIXELS = {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))}
TEXT = {"input_ids": IDS}
# class, configuration, input, name of the head, number of classes
HEADS = {
    "classifier": (Bert, bert, TEXT, "classifier", LABELS),
    "inner layer": (
        Roberta,
        lambda **s: hf.RobertaConfig(**SIZES, num_labels=16, max_position_embeddings=40, **s),
        TEXT,
        "classifier.out_proj",
        16,  # as many labels as there are hidden units: the last such layer is the head
    ),
    "tagger": (Tagger, bert, TEXT, "classifier", LABELS),
    "images": (
        Vit,
        lambda **s: hf.ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=8,
            patch_size=4,
            num_labels=LABELS,
            **s,
        ),
        PIXELS,
        "classifier",
        LABELS,
    ),
    "masked words": (Masked, lambda **s: bert(tie_word_embeddings=False, **s), TEXT, "cls.predictions.decoder", WORDS),
    "next word": (Llama, llama, TEXT, "lm_head", WORDS),
    "untied": (Gpt2, lambda **s: gpt2(tie_word_embeddings=False, **s), TEXT, "lm_head", WORDS),
}


def make(kind, config):
    torch.manual_seed(0)
    return kind(config).eval()


@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_gives_the_references_log_probabilities_and_survives_a_round_trip(name, activation, tmp_path):
    kind, config, given, where, classes = HEADS[name]
    model = make(kind, config(catnat=activation))
    head, seen = model.get_submodule(where), []
    assert isinstance(head, ct.CatnatLinear) and head.linear.out_features == classes - 1
    assert 0.01 < head.linear.weight.std() < 0.03  # as transformers draws its own: deviation 0.02, not Linear's 0.25
    head.linear.weight.data *= 50  # away from uniform
    head.linear.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        logits = model(**given).logits
    pi = catnat.Parameterization(classes, activation)
    exact = reference.log_catnat(seen[0].double().numpy(), pi)
    assert_close(logits.double(), torch.tensor(exact).reshape(logits.shape), rtol=1e-6, atol=1e-6)
    assert logits.exp().std() > 1e-3

    model.save_pretrained(tmp_path)
    again, problems = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(problems.values()), problems
    assert again.config.catnat == activation
    with torch.no_grad():
        assert_close(again.eval()(**given).logits, logits, rtol=0, atol=0)


@pytest.mark.parametrize("name", HEADS)
def test_the_models_loss_is_the_cross_entropy_of_the_scores(name):
    kind, config, given, where, classes = HEADS[name]
    model = make(kind, config())
    head, inputs = model.get_submodule(where), []
    head.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    with torch.no_grad():
        rows = model(**given).logits.shape[:-1]
    labels = torch.randint(classes, rows, generator=torch.Generator().manual_seed(2))
    loss = model(**given, labels=labels).loss
    features, shift = inputs[-1], name in ("next word", "untied")
    if shift:
        features, labels = features[:, :-1], labels[:, 1:]
    ours = head.loss(features.reshape(-1, 16), labels.reshape(-1))
    assert_close(loss, ours)
    weight = head.linear.weight
    assert_close(torch.autograd.grad(loss, weight, retain_graph=True), torch.autograd.grad(ours, weight))


def test_the_names_in_the_configuration_are_checked_and_a_tree_may_be_given():
    with pytest.raises(ValueError, match="tanh"):
        Bert(bert(catnat="tanh"))

    class Chain(Bert):
        def catnat_parameterization(self, num_classes):
            return catnat.Parameterization(num_classes, "sigmoid", catnat.Tree.chain(LABELS))

    assert Chain(bert()).classifier.parameterization.tree == catnat.Tree.chain(LABELS)
    assert Bert(bert()).config.catnat == "natural"


class Uncommon:
    """Another tree and activation than the configuration can name."""

    def catnat_parameterization(self, num_classes):
        tree = catnat.Tree.huffman([2.0**k for k in range(num_classes)])
        return catnat.Parameterization(num_classes, catnat.Natural(tail=0.03), tree)


class UncommonBert(Uncommon, Bert):
    pass


class UncommonLlama(Uncommon, Llama):
    pass


class OtherBert(Bert):
    def catnat_parameterization(self, num_classes):
        return catnat.Parameterization(num_classes, catnat.Natural(tail=0.03), catnat.Tree.chain(num_classes))


@pytest.mark.parametrize(
    "kind, config, others",
    [(UncommonBert, bert, (Bert, OtherBert)), (UncommonLlama, llama, (Llama,)), (Bert, bert, (UncommonBert,))],
)
def test_what_is_loaded_has_the_tree_that_was_saved_or_is_refused(kind, config, others, tmp_path):
    settings = config()
    model = make(kind, settings)
    for parameter in model.parameters():
        parameter.data *= 5  # away from uniform
    with torch.no_grad():
        log_p = model(IDS).logits
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert_close(kind.from_pretrained(tmp_path).eval()(IDS).logits, log_p, rtol=0, atol=0)
    for other in others:
        with pytest.raises(RuntimeError, match=r"saved with another parameterization \((tail|another)"):
            other.from_pretrained(tmp_path)
        make(other, settings)  # a configuration may be used again, for anything
    again = kind.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path / "again")
    kind.from_pretrained(tmp_path / "again")


def test_another_activation_is_not_slipped_under_a_checkpoint(tmp_path):
    make(Bert, bert(catnat="sigmoid")).save_pretrained(tmp_path)
    assert Bert.from_pretrained(tmp_path).classifier.parameterization.activation == catnat.Sigmoid()
    with pytest.raises(RuntimeError, match=r"saved with another parameterization \(tail 0.5 there, 0.1 here\)"):
        Bert.from_pretrained(tmp_path, catnat="natural")


def test_a_mixin_that_comes_last_is_refused():
    with pytest.raises(TypeError, match="must come first"):
        type("Wrong", (hf.BertForSequenceClassification, CatnatHead), {})


def test_tied_embeddings_are_refused():
    with pytest.raises(ValueError, match="set tie_word_embeddings=False"):
        Gpt2(gpt2())


@pytest.mark.parametrize("settings", [{"num_labels": 1}, {"problem_type": "multi_label_classification"}])
def test_what_is_no_choice_of_one_class_is_refused(settings):
    with pytest.raises(ValueError, match="single_label_classification"):
        Bert(bert(**settings))


def test_a_vocabulary_cannot_grow_under_a_tree():
    model = make(Llama, llama())
    with pytest.raises(ValueError, match="30 leaves, which cannot become 33"):
        model.resize_token_embeddings(33)
    with pytest.raises(ValueError, match="cannot become more"):
        model.resize_token_embeddings(pad_to_multiple_of=8)
    assert model.resize_token_embeddings().num_embeddings == WORDS
    assert make(Bert, bert()).resize_token_embeddings(33).num_embeddings == 33  # a classifier's may


def test_a_softmax_checkpoint_gives_its_body(tmp_path):
    plain = hf.BertForSequenceClassification(bert()).eval()
    plain.save_pretrained(tmp_path)
    ours, problems = Bert.from_pretrained(tmp_path, output_loading_info=True)
    new = {"classifier.linear.weight", "classifier.linear.bias", "classifier.definition"}
    assert set(problems["missing_keys"]) == new
    assert set(problems["unexpected_keys"]) == {"classifier.weight", "classifier.bias"}
    assert_close(ours.bert.embeddings.word_embeddings.weight, plain.bert.embeddings.word_embeddings.weight)
    assert_close(ours.classifier.definition, Bert(bert()).classifier.definition)
    assert 0.005 < ours.classifier.linear.weight.std() < 0.04


def test_generation_takes_the_likeliest_word_and_draws_words():
    model = make(Llama, llama())
    drawn = model.generate(IDS, max_new_tokens=4, do_sample=True, pad_token_id=0, eos_token_id=WORDS)
    assert drawn.shape == (3, 11)
    greedy = model.generate(IDS, max_new_tokens=1, do_sample=False, pad_token_id=0)[:, -1]
    features = model.model(IDS).last_hidden_state[:, -1]
    assert greedy.equal(model.lm_head.mode(features))


def test_half_precision_keeps_the_digits_of_log_probabilities():
    model = make(Llama, llama()).to(torch.bfloat16)
    seen = []
    model.lm_head.linear.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = model(IDS).logits
    assert logits.dtype == torch.float32 and seen[0].dtype == torch.bfloat16
    exact = reference.log_catnat(seen[0].double().detach().numpy(), catnat.Parameterization(WORDS))
    assert_close(logits.double(), torch.tensor(exact), rtol=1e-6, atol=1e-6)


def test_models_of_another_task_or_with_other_logits_are_refused():
    class Spans(CatnatHead, hf.BertForQuestionAnswering):
        pass

    class Teacher(CatnatHead, hf.DeiTForImageClassificationWithTeacher):
        pass

    class Scaled(CatnatHead, hf.CohereForCausalLM):
        pass

    for kind, config, told in (
        (Spans, bert(), "got BertForQuestionAnswering"),
        (Teacher, hf.DeiTConfig(num_labels=LABELS), "got DeiTForImageClassificationWithTeacher"),
        (Scaled, hf.CohereConfig(**SIZES, logit_scale=0.06, tie_word_embeddings=False), "logit_scale must be 1.0; got"),
    ):
        with pytest.raises(ValueError, match=told):
            kind(config)


def test_a_model_is_pickled(tmp_path):
    model = make(Llama, llama())
    torch.save(model, tmp_path / "whole.pt")
    again = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=0)


@pytest.mark.slow  # its loss and gradients are those of the scores
def test_softmax_and_catnat_learn_with_the_same_settings():
    # the label is the first word's remainder: both heads learn it with the same settings
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(2, WORDS, (256, 4), generator=generator)
    labels = words[:, 0] % LABELS
    reached = {}
    for kind in (hf.BertForSequenceClassification, Bert):
        torch.manual_seed(0)
        model = kind(bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(80):
            optimizer.zero_grad()
            model(words, labels=labels).loss.backward()
            optimizer.step()
        reached[kind] = (model(words).logits.argmax(-1) == labels).float().mean().item()
    assert min(reached.values()) > 0.95, reached
