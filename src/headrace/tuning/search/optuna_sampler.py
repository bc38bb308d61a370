"""Optuna's TPE as the sampler of a search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import Any

from headrace.tuning.search.sampler import Neighbours, Sampler
from headrace.tuning.search.space import Changes, Space

__all__ = ["OptunaTpe", "best_sampler"]

_TRIES = 5  # each is a question that TPE takes milliseconds to answer


class OptunaTpe:
    """A tree-structured Parzen estimator over all options, told what the ladder has found."""

    name = "Optuna's TPE"

    def __init__(self, space: Space, seed: int = 0) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._optuna = space, optuna
        self._choices = {
            knob.key: tuple(dict.fromkeys((space.start.get(knob.key), *knob.values)))
            for knob in space.knobs
        }
        self._axes: dict[str, Any] = {
            key: optuna.distributions.CategoricalDistribution(range(len(values)))
            for key, values in self._choices.items()
        }
        with warnings.catch_warnings():
            # Multivariate: what two options do together is what the ladder could not see.
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=8)
        self._study: Any = optuna.create_study(direction="maximize", sampler=sampler)
        self._other = Neighbours(space, seed)

    def tell(self, changes: Changes, ratio: float | None) -> None:
        """A failure is a ratio of 0."""
        value = 0.0 if ratio is None else ratio
        places = {}
        for key, values in self._choices.items():
            here = changes.get(key, self._space.start.get(key))
            if here not in values:
                return  # set along with another option: no place on the axes
            places[key] = values.index(here)
        self._study.add_trial(
            self._optuna.trial.create_trial(params=places, distributions=self._axes, value=value)
        )

    def ask(
        self, best: Changes, mattered: Collection[str], allowed: Callable[[Changes], bool]
    ) -> Changes | None:
        """The next one; a neighbour of the best where TPE only repeats itself."""
        for _ in range(_TRIES if self._axes else 0):
            trial = self._study.ask(self._axes)
            choice = {key: values[trial.params[key]] for key, values in self._choices.items()}
            changes = self._space.chosen(choice)
            # What becomes of it is told as a trial of its own; this one was only the question.
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            if allowed(changes):
                return changes
        return self._other.ask(best, mattered, allowed)


def best_sampler(space: Space, seed: int = 0) -> Sampler:
    """Optuna's if it is installed, else our own."""
    return OptunaTpe(space, seed) if find_spec("optuna") else Neighbours(space, seed)
