"""Codes of speech as in wav2vec 2.0: two variables of 320 classes a frame, found by telling a frame from others.

The sound is synthetic: a chain of 40 phones, each with formants and a length of its own, said by voices that differ.
"""

import torch
import torch.nn.functional as F
from torch import nn

import catnat.torch as ct

PHONES, BANDS, LENGTH, GROUPS, CODES, WIDE, RIVALS = 40, 24, 48, 2, 320, 64, 20


def said(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[count, LENGTH, BANDS] energies, and [count, LENGTH] which phone it is."""
    fixed, stream = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    formants = BANDS * torch.rand(PHONES, 3, generator=fixed)
    follows = torch.randn(PHONES, PHONES, generator=fixed).mul(2).softmax(-1)
    phone = torch.randint(PHONES, (count,), generator=stream)
    spoken = []
    for _ in range(LENGTH):
        goes_on = torch.rand(count, generator=stream) < 0.75
        phone = torch.where(goes_on, phone, torch.multinomial(follows[phone], 1, generator=stream).squeeze(-1))
        spoken.append(phone)
    phones = torch.stack(spoken, 1)
    voice = 1 + 0.1 * torch.randn(count, 1, 1, generator=stream)
    bands = torch.arange(float(BANDS))
    heights = formants[phones] * voice + 0.3 * torch.randn(count, LENGTH, 3, generator=stream)
    energy = torch.exp(-0.5 * (bands - heights.unsqueeze(-1)).square()).sum(2)
    return energy + 0.1 * torch.randn(energy.shape, generator=stream), phones


(heard, heard_phones), validated_on, tested_on = said(1_000, 1), said(150, 2), said(300, 3)


def train(head: str, rate: float, seed: int, steps: int = 1_000):
    """How many frames have the phone that their code mostly stood for in training, in per cent."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(BANDS, 128), nn.GELU(), nn.Linear(128, 128))
    quantizer = ct.CategoricalLatent(128, GROUPS, CODES, head=head, estimator="gumbel", tau=1.0, embed=WIDE // GROUPS)
    context, say = nn.GRU(128, 64, batch_first=True, bidirectional=True), nn.Linear(128, WIDE)
    optimizer = torch.optim.Adam(nn.ModuleList([encoder, quantizer, context, say]).parameters(), rate)
    own = torch.arange(LENGTH)

    def loss(sound: torch.Tensor) -> torch.Tensor:
        frames = encoder(sound)
        q = quantizer(frames)
        hidden = torch.rand(sound.shape[:2]) < 0.5
        guess = say(context(frames.masked_fill(hidden.unsqueeze(-1), 0.0))[0])
        other = (own + torch.randint(1, LENGTH, (RIVALS, LENGTH))) % LENGTH  # frames of the same utterance
        target = q.z.flatten(-2)[:, torch.cat((own.unsqueeze(0), other))]  # [count, 1 + RIVALS, LENGTH, WIDE]
        alike = F.cosine_similarity(guess.unsqueeze(1), target, -1) / 0.1
        same = (target[:, 1:] == target[:, :1]).all(-1)  # a rival with the frame's own codes is none
        alike = torch.cat((alike[:, :1], alike[:, 1:].masked_fill(same, -torch.inf)), 1)
        contrast = -alike.log_softmax(1)[:, 0][hidden].mean()
        usage = q.log_q.exp().mean((0, 1))
        perplexity = torch.special.entr(usage).sum(-1).exp()
        return contrast + 0.1 * (1 - perplexity / CODES).mean()

    def codes(sound: torch.Tensor) -> torch.Tensor:
        first, second = quantizer.argmax(encoder(sound)).unbind(-1)
        return (first * CODES + second).flatten()

    @torch.no_grad()
    def named(sound: torch.Tensor, phones: torch.Tensor) -> float:
        counts = torch.zeros(CODES * CODES, PHONES)
        counts.index_put_((codes(heard), heard_phones.flatten()), torch.tensor(1.0), accumulate=True)
        return 100 * (counts.argmax(-1)[codes(sound)] == phones.flatten()).float().mean().item()

    for _ in range(steps):
        optimizer.zero_grad()
        loss(heard[torch.randint(len(heard), (8,))]).backward()
        optimizer.step()
    return named(*validated_on), named(*tested_on)
