"""What language models of source code share: the texts, tokens and their vectors, the network and how it is trained."""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from catnat_lab.errors import UserError

HELD_OUT = 20  # one part in so many is for validation, and one for the test
END = "<end of line>"
SIZE = 32  # numbers in a token's vector, by which tokens are clustered
SKIPPED = {"site-packages", "test", "tests", "idlelib", "lib2to3"}  # of others, or much of a kind
WARM_UP = 100  # steps
Loss = Callable[[Tensor, Tensor], Tensor]  # of ids [B, L] and the ids that follow them, the mean nats


# -- tokens ----------------------------------------------------------------------------------------------------------


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if not SKIPPED & set(path.relative_to(folder).parts))


def shuffled(count: int) -> list[int]:
    """A fixed order of files: what is held out is of other files, not of one package."""
    return np.random.default_rng(0).permutation(count).tolist()


def pieces(lines: Iterable[str], classes: int, spaces: bool = False) -> Callable[[str], list[int]]:
    """A coder from a text to the ids of byte pairs, with one for the end of a line; it learns them from some lines.

    ``spaces``: a run of spaces may be one piece, such as an indentation.
    """
    try:
        import sentencepiece
    except ImportError:
        raise UserError("a language model needs sentencepiece: pip install '.[lab]' in catnat's folder") from None
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=classes,
        user_defined_symbols=[END],
        normalization_rule_name="identity",  # code: every space counts
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        allow_whitespace_only_pieces=spaces,
        byte_fallback=True,
        num_threads=1,  # the same pieces always
        minloglevel=2,
    )
    coder = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    end = coder.piece_to_id(END)
    return lambda text: [i for line in coder.encode(text.splitlines()) for i in (*line, end)]


def parts(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """To train on, to choose by and to judge by."""
    held = len(tokens) // HELD_OUT
    return tokens[: -2 * held], tokens[-2 * held : -held], tokens[-held:]


def vectors(tokens: np.ndarray, classes: int) -> np.ndarray:
    """Of what stands before and after every token in the training part, the main directions."""
    from scipy.sparse import coo_matrix, hstack
    from scipy.sparse.linalg import svds

    train = parts(tokens)[0]
    ones = np.ones(len(train) - 1)
    after = coo_matrix((ones, (train[:-1], train[1:])), (classes, classes)).tocsr()
    both = hstack([after, after.T]).tocsr().sqrt()
    left, sizes, _ = svds(both, k=SIZE, random_state=0)
    return np.asarray(left * sizes, np.float32)


def checksum(tokens: np.ndarray) -> str:
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]


# -- a network -------------------------------------------------------------------------------------------------------


class Trunk(nn.Module):
    """A small transformer without its head."""

    def __init__(self, classes: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(classes, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, L] to features [B, L, width]."""
        places = torch.arange(ids.shape[1], device=ids.device)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        features: Tensor = self.layers(self.embedding(ids) + self.places(places), mask=mask, is_causal=True)
        return features


@dataclass(frozen=True)
class Training:
    """By Adam: how long, on how much at a time, how fast and on which stream of batches."""

    steps: int
    batch: int
    length: int
    rate: float
    seed: int


def fit(
    parameters: Sequence[nn.Parameter], loss: Loss, tokens: Tensor, how: Training
) -> Iterator[tuple[int, torch.optim.Adam]]:
    """Train, and stop for a moment after every step; the rate warms up, then falls to nothing."""
    device = tokens.device
    optimiser = torch.optim.Adam(parameters, how.rate, fused=device.type == "cuda")
    stream = torch.Generator().manual_seed(how.seed)
    within = torch.arange(how.length + 1, device=device)
    for step in range(how.steps):
        starts = torch.randint(len(tokens) - how.length, (how.batch, 1), generator=stream).to(device)
        ids = tokens[starts + within].long()
        for group in optimiser.param_groups:
            group["lr"] = how.rate * min(1, (step + 1) / WARM_UP) * (1 - step / how.steps)
        optimiser.zero_grad()
        loss(ids[:, :-1], ids[:, 1:]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        yield step + 1, optimiser


@torch.no_grad()
def judge(loss: Loss, tokens: Tensor, judged: int, batch: int, length: int) -> float:
    """Mean nats per token over so many of them, at most."""
    count = min(len(tokens), judged) // (length + 1)
    rows = tokens[: count * (length + 1)].view(count, length + 1).long()
    losses = [loss(some[:, :-1], some[:, 1:]) * len(some) for some in rows.split(batch)]
    return float(torch.stack(losses).sum() / len(rows))
