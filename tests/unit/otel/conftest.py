"""Fixtures: providers of an application, with and without monitel_otel."""

from collections.abc import Iterator

import pytest
from tests.unit.otel.providers import Backend, in_memory

import monitel_otel
from monitel_otel import Installation


@pytest.fixture
def backend() -> Iterator[Backend]:
    with in_memory() as backend:
        yield backend


@pytest.fixture
def installed(backend: Backend) -> Iterator[Installation]:
    with monitel_otel.install(backend.meter_provider, backend.logger_provider) as installation:
        yield installation
