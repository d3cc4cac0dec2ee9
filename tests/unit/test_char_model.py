"""The model of the demo learns: its gradients are right, and its batches are the text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.support.paths import EXAMPLES

sys.path.insert(0, str(EXAMPLES))  # the examples are scripts, not a package

import numpy as np
from char_model import Adam, CharModel, Corpus, draw_batch

if TYPE_CHECKING:
    from pathlib import Path


def test_gradients_are_those_of_finite_differences() -> None:
    """Backpropagation agrees with finite differences of the loss, for every parameter."""
    rng = np.random.default_rng(0)
    model = CharModel("abcdef", rng, context=3, embedding=4, hidden=5, dtype=np.float64)
    contexts, targets = rng.integers(6, size=(7, 3)), rng.integers(6, size=7)
    _, gradients = model.loss_and_gradients(contexts, targets)
    nudge = 1e-6
    for name, parameter in model.parameters.items():
        slopes = np.zeros_like(parameter)
        for index in np.ndindex(parameter.shape):
            value = parameter[index]
            losses = []
            for parameter[index] in (value + nudge, value - nudge):
                losses.append(model.loss(contexts, targets))
            parameter[index] = value
            slopes[index] = (losses[0] - losses[1]) / (2 * nudge)
        np.testing.assert_allclose(gradients[name], slopes, rtol=1e-5, atol=1e-8, err_msg=name)


def test_the_model_learns(tmp_path: Path) -> None:
    """After a hundred steps the loss is far below that of character frequencies; a seed gives the same losses again."""
    for number in range(40):
        source = f"for item in range({number}):\n    print(item)\n" * 200
        (tmp_path / f"file{number:02}.py").write_text(source)
    corpus = Corpus.read(tmp_path)

    def losses(seed: int, steps: int) -> list[float]:
        rng = np.random.default_rng(seed)
        model = CharModel(corpus.vocabulary, rng, hidden=32)
        optimizer, found = Adam(model.parameters), []
        for _ in range(steps):
            loss, gradients = model.loss_and_gradients(*draw_batch(corpus.train, model.context, 64, rng))
            optimizer.step(gradients)
            found.append(loss)
        return found

    learning = losses(0, 100)
    assert learning[0] > corpus.unigram_entropy() > 2 * learning[-1]
    assert losses(0, 5) == learning[:5] != losses(2, 5)


def test_a_batch_holds_contexts_and_the_characters_that_follow_them() -> None:
    """The target is the character after its context, at every position of the text."""
    ids = np.arange(10)
    contexts, targets = draw_batch(ids, 3, 1000, np.random.default_rng(0))
    np.testing.assert_array_equal(contexts, targets[:, None] + [-3, -2, -1])
    assert set(targets) == set(range(3, 10))
