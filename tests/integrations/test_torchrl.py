"""TorchRL with catnat: the real library, held against the oracle."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import catnat.torch as ct
from tests.integrations.action_oracle import HUFFMAN, allowed, entropy, log_prob, random_masks
from tests.thinned import thinned

pytest.importorskip("torchrl", reason="needs the extra torchrl: TorchRL is not installed")

from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, KLPENPPOLoss, PPOLoss, ReinforceLoss

from catnat.integrations.torchrl import OneHotActions, catnat_actor

SPECS = {"ids": Categorical(5), "one-hot": OneHot(5), "several parts": MultiCategorical([3, 5, 2])}
RANDOM, SURE = InteractionType.RANDOM, InteractionType.DETERMINISTIC


@pytest.fixture(autouse=True)
def validation_is_off() -> None:
    """As TorchRL's import leaves it for a user; other tests of the process may have turned it on."""
    torch.distributions.Distribution.set_default_validate_args(False)


def classes(spec) -> list[int]:
    return spec.nvec.tolist() if isinstance(spec, MultiCategorical) else [spec.space.n]


def ids(actions: torch.Tensor, spec) -> torch.Tensor:
    """Actions as [rows, parts]."""
    return actions.argmax(-1)[:, None] if isinstance(spec, OneHot) else actions.reshape(len(actions), -1)


def actor(spec, outputs: int | None = None, **kwargs) -> ProbabilisticActor:
    torch.manual_seed(0)
    nvec = classes(spec)
    layer = torch.nn.Linear(3, sum(nvec) - len(nvec) if outputs is None else outputs)
    with torch.no_grad():
        layer.weight.mul_(5)
    module = TensorDictModule(layer, in_keys=["observation"], out_keys=["scores"])
    return catnat_actor(module, spec, return_log_prob=True, **kwargs)


def seen(rows: int = 50, **more: torch.Tensor) -> TensorDict:
    observation = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    return TensorDict({"observation": observation, **more}, [rows])


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("how", [RANDOM, SURE, InteractionType.MODE], ids=str)
def test_what_an_actor_says_is_what_the_oracle_says(spec, how: InteractionType, masked: bool) -> None:
    nvec = classes(spec)
    masks = random_masks(50, nvec, torch.Generator().manual_seed(2)) if masked else None
    act = actor(spec, mask_key="action_mask" if masked else None)
    given = seen() if masks is None else seen(action_mask=masks)
    with torch.no_grad(), set_interaction_type(how):
        out = act(given.clone())
        policy = act.get_dist(given.clone())
    assert out["action"].dtype == torch.int64  # as TorchRL draws its own
    assert spec.expand(50, *spec.shape).is_in(out["action"].to(spec.dtype))
    want = log_prob(out["scores"], nvec, ids(out["action"], spec), masks=masks)
    np.testing.assert_allclose(out["action_log_prob"], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.entropy(), entropy(out["scores"], nvec, masks=masks), rtol=1e-5, atol=1e-6)
    if how is not RANDOM:
        np.testing.assert_array_equal(out["action"], policy.mode)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_masked_action_is_never_taken(spec) -> None:
    nvec, rows = classes(spec), 100_000
    masks = random_masks(rows, nvec, torch.Generator().manual_seed(3))
    act = actor(spec, mask_key="action_mask")
    with torch.no_grad():
        act[0].module.weight.mul_(10)  # sure of itself, and often of what is forbidden
        for how in (RANDOM, SURE):
            with set_interaction_type(how):
                taken = act(seen(rows, action_mask=masks))["action"]
            assert allowed(ids(taken, spec), masks, nvec).all()
        free = actor(spec)(seen(rows))["action"]
    assert not allowed(ids(free, spec), masks, nvec).all()  # the masks do something


@pytest.mark.parametrize(
    ("name", "how"), thinned(product(SPECS, [RANDOM, SURE, InteractionType.MODE]), quick=[("several parts", RANDOM)])
)
def test_a_compiled_actor_says_the_same(name: str, how: InteractionType) -> None:
    spec = SPECS[name]
    act, nvec = actor(spec), classes(spec)
    torch.compiler.reset()
    with torch.no_grad(), set_interaction_type(how):
        out = torch.compile(act, backend="aot_eager", fullgraph=True)(seen())
        if how is not RANDOM:
            assert torch.equal(out["action"], act(seen())["action"])
    want = log_prob(out["scores"], nvec, ids(out["action"], spec))
    np.testing.assert_allclose(out["action_log_prob"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kind"), thinned(product(SPECS, [PPOLoss, ClipPPOLoss, KLPENPPOLoss, A2CLoss, ReinforceLoss]), every=8)
)
def test_every_loss_has_a_gradient(name: str, kind) -> None:
    act = actor(SPECS[name])
    with torch.no_grad():
        given = act(seen())
    critic = ValueOperator(torch.nn.Linear(3, 1), in_keys=["observation"])
    step = {"reward": torch.randn(50, 1), "done": torch.zeros(50, 1, dtype=torch.bool)}
    step |= {"terminated": step["done"], "observation": torch.randn(50, 3)}
    given["next"] = TensorDict(step, [50])
    losses = kind(act, critic)(given)
    sum(value for key, value in losses.items() if key.startswith("loss_")).backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in act.parameters())


def test_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    spec = SPECS["several parts"]
    act, other = actor(spec), actor(spec)
    with torch.no_grad():
        act[0].module.weight.mul_(-1)
    torch.save(act.state_dict(), tmp_path / "actor")
    with torch.no_grad(), set_interaction_type(SURE):
        before = act(seen())["action"]
        assert not torch.equal(before, other(seen())["action"])
        other.load_state_dict(torch.load(tmp_path / "actor", weights_only=True))
        assert torch.equal(before, other(seen())["action"])


def test_a_tree_of_ones_own() -> None:
    policy = actor(SPECS["ids"], parameterization=HUFFMAN).get_dist(seen())
    assert isinstance(policy, ct.CatnatCategorical)
    assert policy.parameterization == HUFFMAN


def test_one_hot_actions_expand() -> None:
    policy = OneHotActions(torch.zeros(3), 4).expand([7])
    assert type(policy) is OneHotActions
    assert policy.sample().shape == policy.deterministic_sample.shape == (7, 4)
    assert policy.sample().dtype == policy.deterministic_sample.dtype == torch.int64


@pytest.mark.parametrize("spec", [Bounded(-1, 1, (2,)), Binary(3), MultiOneHot([2, 3])], ids=lambda s: type(s).__name__)
def test_other_specs_are_refused(spec) -> None:
    with pytest.raises(ValueError, match="action_spec must be Categorical, OneHot or MultiCategorical"):
        catnat_actor(TensorDictModule(torch.nn.Linear(3, 2), in_keys=["observation"], out_keys=["scores"]), spec)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_wide_layer_is_refused(spec) -> None:
    with pytest.raises(ValueError, match="scores must"):
        actor(spec, outputs=sum(classes(spec)))(seen())
