"""Experimental settings of a profile, by torch's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class _ExperimentalConfig:
    """Settings for ``profile(experimental_config=...)``, with the parameters of torch's ``_ExperimentalConfig``.

    Args:
        record_python_gc_info: Record the pauses of Python's garbage collector as ranges named ``Python GC``.
        profiler_metrics: Accepted without effect, like all other settings. Ranges of all threads are always recorded.
    """

    profiler_metrics: Sequence[str] = field(default_factory=list)
    profiler_measure_per_kernel: bool = False
    verbose: bool = False
    performance_events: Sequence[str] = field(default_factory=list)
    enable_cuda_sync_events: bool = False
    adjust_profiler_step: bool = False
    disable_external_correlation: bool = False
    profile_all_threads: bool = False
    capture_overload_names: bool = False
    record_python_gc_info: bool = False
    expose_kineto_event_metadata: bool = False
    custom_profiler_config: str = ""
    adjust_timestamps: bool = False
    trace_only: bool = False
