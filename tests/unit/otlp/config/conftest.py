"""Fixture for tests that must not resolve names."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import pytest


@pytest.fixture
def no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail each look-up of a name, so that requests to named hosts are spooled; IP addresses still work."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        try:
            ip_address(host)
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
