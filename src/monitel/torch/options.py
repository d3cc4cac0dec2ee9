"""Options of :func:`monitel.torch.instrument`: their defaults, checks, variables and documentation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from inspect import signature
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from monitel.attributes import checked_text
from monitel.stat_arguments import window_length_ns
from monitel.variables import BOOLEAN, Variable, check_arguments, positive

if TYPE_CHECKING:
    from collections.abc import Callable

_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class InstrumentOptions:
    """The keyword arguments of :func:`monitel.torch.instrument`. A bad value raises an error that names the argument.

    Attributes:
        steps: Optimizer steps: ``training.steps``, ``training.steps.skipped``, ``training.step.duration``, the
            process's step, and the rates of ``training.samples`` and ``training.tokens``.
        stages: The stages of a training step: ``training.stage.duration``, which shows in which stage a rank is late.
        loading: Time that the loop waits for batches: the activity ``data``.
        waits: torch's wait counters, in :func:`monitel.wait_counters` and in all exporters.
        stuck_after: Seconds after which a wait in flight, torch's or monitel's, is logged as a ``wait.stuck`` event,
            and counts as the activity ``stuck``; None for never.
        monitor: Events and Stats that torch code logs through torch.monitor, forwarded to monitel's handlers.
        compilation: A range, events and the activity ``compile`` for compilations by torch.compile, with the reasons
            for recompilations.
        failures: Events for uncaught exceptions, GPU memory errors and failed collectives.
        checkpoints: Activities and events of checkpoints by torch.save, torch.load and torch.distributed.checkpoint.
        process_groups: The activity ``init``: set-up of process groups of torch.distributed.
        tensors: ``Stat.add(tensor)`` and ``emit(..., loss=tensor)`` without waiting for the device.
        compiled_adds: ``Stat.add`` in code that torch.compile compiles, without a graph break.
        stages_on_device: The stages on the accelerator too: ``training.stage.device.duration``. Requires ``stages``.
        rank_group: Name of the group of ranks with which this rank is compared, where ranks differ by design, as
            pipeline stages do: the attribute ``training.group`` of the stages. None for all ranks. Requires ``stages``.
        samples_per_step: Samples per step of this process, for ``training.samples`` and its rate: a number, or a
            function without arguments that is called after each step. Requires ``steps``.
        tokens_per_step: Tokens per step of this process, for ``training.tokens`` and its rate, in the same form.
            Requires ``steps``.
        flops_per_step: The model's floating point operations per step of this process, for ``training.mfu``, in the
            same form. Requires ``steps`` and ``peak_flops``.
        peak_flops: Peak floating point operations per second of the device. Requires ``flops_per_step``.
        window_size: Window size of all Stats in seconds, at least 0.001.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range, or an argument lacks another one that it requires.
    """

    steps: bool = True
    stages: bool = True
    loading: bool = True
    waits: bool = True
    stuck_after: float | None = 300.0
    monitor: bool = True
    compilation: bool = True
    failures: bool = True
    checkpoints: bool = True
    process_groups: bool = True
    tensors: bool = True
    compiled_adds: bool = True
    stages_on_device: bool = False
    rank_group: str | None = None
    samples_per_step: float | Callable[[], float] | None = None
    tokens_per_step: float | Callable[[], float] | None = None
    flops_per_step: float | Callable[[], float] | None = None
    peak_flops: float | None = None
    window_size: float = 60.0

    def __post_init__(self) -> None:
        check_arguments(CHOICES, {field.name: field.default for field in fields(self)}, vars(self))
        if self.stages_on_device and not self.stages:
            raise ValueError("stages_on_device requires stages=True: it measures the same stages")
        if self.rank_group is not None and not self.stages:
            raise ValueError("rank_group requires stages=True: it is an attribute of the stages")
        if (self.flops_per_step is None) != (self.peak_flops is None):
            raise ValueError("flops_per_step and peak_flops must be given together (MFU is their ratio)")
        rates = (self.samples_per_step, self.tokens_per_step, self.flops_per_step)
        if not self.steps and any(number is not None for number in rates):
            raise ValueError("samples_per_step, tokens_per_step and flops_per_step require steps=True")


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be None or a str, got {value!r:.80}")
    if not checked_text(name, value):
        raise ValueError(f"{name} must be None or a name, got an empty str")


def _window_size(text: str) -> float:
    window_length_ns(float(text))
    return float(text)


_AMOUNT = positive("a positive and finite number")
_AMOUNT_OR_FUNCTION = _AMOUNT._replace(
    check=positive("a positive and finite number, or callable", other=callable).check
)
_SECONDS = positive("None or a positive number of seconds", below=None, other=lambda value: value is None)

#: The variable of each option, or the reason why there is none.
CHOICES: dict[str, Variable | str] = {
    **{field.name: BOOLEAN for field in fields(InstrumentOptions) if isinstance(field.default, bool)},
    "stuck_after": _SECONDS._replace(parse=lambda text: None if text.lower() == "none" else _SECONDS.parse(text)),
    "stages_on_device": BOOLEAN._replace(requires=("stages",)),
    "rank_group": Variable(str, "a name", ("stages",), _check_name),
    "samples_per_step": _AMOUNT_OR_FUNCTION._replace(requires=("steps",)),
    "tokens_per_step": _AMOUNT_OR_FUNCTION._replace(requires=("steps",)),
    "flops_per_step": _AMOUNT_OR_FUNCTION._replace(requires=("steps", "peak_flops")),
    "peak_flops": _AMOUNT._replace(requires=("flops_per_step",)),
    "window_size": Variable(
        _window_size, "a number of seconds, at least 0.001", check=lambda _, value: window_length_ns(value)
    ),
}


def takes_options(
    options: Callable[_Options, InstrumentOptions],
) -> Callable[[Callable[..., _Result]], Callable[_Options, _Result]]:
    """Give a function the keyword arguments of InstrumentOptions, with their types and defaults, as its signature.

    Type checkers and editors take the signature from the type; ``help()`` and ``inspect.signature()`` from the
    attribute. So no list of the arguments is written twice.
    """

    def decorate(function: Callable[..., _Result]) -> Callable[_Options, _Result]:
        arguments = signature(options).parameters.values()
        function.__signature__ = signature(function).replace(parameters=list(arguments))  # type: ignore[attr-defined]
        return function

    return decorate
