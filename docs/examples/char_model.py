"""A character model in NumPy: it predicts the next character from the last few characters.

There is no telemetry here. train_char_model.py is the part to copy from.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

# Read when numpy is imported: with matrices this small, a second BLAS thread mostly waits for the first.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import DTypeLike, NDArray

    Ids: TypeAlias = NDArray[np.intp]
    Floats: TypeAlias = NDArray[np.floating[Any]]
    Parameters: TypeAlias = dict[str, Floats]

MIN_VALIDATION_CHARACTERS = 10_000


@dataclass(frozen=True)
class Corpus:
    """A text as numbers: one index into ``vocabulary`` per character."""

    vocabulary: str
    train: Ids
    validation: Ids

    @classmethod
    def read(cls, folder: Path) -> Corpus:
        """Read every ``*.py`` file of a folder, indented by tabs. Every twentieth file is kept for validation."""
        paths = sorted(folder.glob("*.py"))
        sources = [path.read_text(encoding="ascii", errors="ignore").replace("    ", "\t") for path in paths]
        train = "".join(source for number, source in enumerate(sources) if number % 20)
        validation = "".join(sources[::20])
        if len(validation) < MIN_VALIDATION_CHARACTERS:
            raise ValueError(
                f"{folder} must hold enough Python source to learn from, some 20 files of 10 kB, "
                f"got {len(sources)} files with {len(train) + len(validation):,} characters"
            )
        vocabulary = "".join(sorted({*train, *validation}))
        return cls(vocabulary, encode(train, vocabulary), encode(validation, vocabulary))

    def unigram_entropy(self) -> float:
        """Return the loss, in nats per character, of a model that uses only the frequency of each character."""
        shares = np.bincount(self.train) / len(self.train)
        shares = shares[shares > 0]
        return float(-(shares * np.log(shares)).sum())


def encode(text: str, vocabulary: str) -> Ids:
    """Return the index of every character of an ASCII text in a sorted vocabulary."""
    codes = np.frombuffer(vocabulary.encode("ascii"), np.uint8)
    return np.searchsorted(codes, np.frombuffer(text.encode("ascii"), np.uint8))


def draw_batch(ids: Ids, context: int, size: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Draw random positions in the text; return the characters before each, ``(size, context)``, and the next one."""
    windows = sliding_window_view(ids, context + 1)
    rows = windows[rng.integers(len(windows), size=size)]
    return rows[:, :-1], rows[:, -1]


class CharModel:
    """Embedding of the context, one hidden layer of ReLUs, softmax over the vocabulary."""

    def __init__(
        self,
        vocabulary: str,
        rng: np.random.Generator,
        *,
        context: int = 12,
        embedding: int = 24,
        hidden: int = 256,
        dtype: DTypeLike = np.float32,
    ) -> None:
        def normal(rows: int, columns: int, scale: float) -> Floats:
            return (rng.standard_normal((rows, columns)) * scale).astype(dtype)

        inputs, symbols = context * embedding, len(vocabulary)
        self.vocabulary = vocabulary
        self.context = context
        self.parameters: Parameters = {
            "embedding": normal(symbols, embedding, 0.3),
            "hidden": normal(inputs, hidden, (2 / inputs) ** 0.5),
            "hidden_bias": np.zeros(hidden, dtype),
            "output": normal(hidden, symbols, 0.1 / hidden**0.5),
            "output_bias": np.zeros(symbols, dtype),
        }

    def _forward(self, contexts: Ids) -> tuple[Floats, Floats, Floats]:
        """Return the embedded contexts, the hidden layer and the log-probabilities of the next character."""
        p = self.parameters
        embedded = p["embedding"][contexts].reshape(len(contexts), -1)
        hidden = np.maximum(embedded @ p["hidden"] + p["hidden_bias"], 0)
        logits = hidden @ p["output"] + p["output_bias"]
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return embedded, hidden, logits

    def loss(self, contexts: Ids, targets: Ids) -> float:
        """Return the mean cross-entropy in nats."""
        _, _, log_probabilities = self._forward(contexts)
        return float(-log_probabilities[np.arange(len(targets)), targets].mean())

    def loss_and_gradients(self, contexts: Ids, targets: Ids) -> tuple[float, Parameters]:
        """Return the loss and its gradient with respect to every parameter."""
        p, rows = self.parameters, np.arange(len(targets))
        embedded, hidden, log_probabilities = self._forward(contexts)
        loss = float(-log_probabilities[rows, targets].mean())

        d_logits = np.exp(log_probabilities)
        d_logits[rows, targets] -= 1
        d_logits /= len(targets)
        d_hidden = (d_logits @ p["output"].T) * (hidden > 0)
        d_embedded = (d_hidden @ p["hidden"].T).reshape(contexts.size, -1)
        # Sums the rows of each character: a product with one-hot columns is several times as fast as np.add.at.
        one_hot = np.zeros((len(self.vocabulary), contexts.size), d_embedded.dtype)
        one_hot[contexts.ravel(), np.arange(contexts.size)] = 1
        return loss, {
            "embedding": one_hot @ d_embedded,
            "hidden": embedded.T @ d_hidden,
            "hidden_bias": d_hidden.sum(axis=0),
            "output": hidden.T @ d_logits,
            "output_bias": d_logits.sum(axis=0),
        }

    def generate(self, prompt: str, length: int, rng: np.random.Generator, temperature: float = 0.6) -> str:
        """Continue a prompt by ``length`` characters, drawn from the model's softmax."""
        ids = list(encode(prompt.rjust(self.context, "\n"), self.vocabulary))
        for _ in range(length):
            _, _, log_probabilities = self._forward(np.array([ids[-self.context :]]))
            weights = np.exp(log_probabilities[0].astype(float) / temperature)
            ids.append(rng.choice(len(self.vocabulary), p=weights / weights.sum()))
        return prompt + "".join(self.vocabulary[index] for index in ids[-length:])

    def save(self, path: Path, **extra: Any) -> None:
        """Write the parameters as ``.npz``. ``path`` has either the complete old file or the complete new one."""
        arrays: dict[str, Any] = {"vocabulary": self.vocabulary, **self.parameters, **extra}
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            np.savez(file, **arrays)
        unfinished.replace(path)


class Adam:
    """Adam (Kingma and Ba, 2015). Its learning rate falls with the square root of the step."""

    def __init__(self, parameters: Parameters, learning_rate: float = 4e-3, hold_steps: int = 500) -> None:
        self.parameters = parameters
        self.learning_rate = learning_rate
        self.hold_steps = hold_steps
        self.steps = 0
        self.means = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.squares = {name: np.zeros_like(value) for name, value in parameters.items()}

    def step(self, gradients: Parameters) -> float:
        """Update the parameters in place; return the norm of the whole gradient."""
        self.steps += 1
        rate = self.learning_rate * min(1, self.hold_steps / self.steps) ** 0.5
        rate *= (1 - 0.99**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for name, gradient in gradients.items():
            mean, square = self.means[name], self.squares[name]
            mean += 0.1 * (gradient - mean)
            square += 0.01 * (gradient * gradient - square)
            self.parameters[name] -= rate * mean / (np.sqrt(square) + 1e-8)
        return float(sum(float((gradient * gradient).sum()) for gradient in gradients.values()) ** 0.5)
