"""Queries to the HTTP API of Prometheus and compatible servers: Mimir, Thanos, VictoriaMetrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import requests

from monitel.blackbox.folder import FolderError
from monitel_otlp.config.endpoint import AddressError, parse_address, proxy_secrets
from monitel_otlp.config.secret import Secret, masker, parts_of_header
from monitel_otlp.threads.deadline import call_within
from monitel_otlp.transport.connection import basic

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The variable with the headers of each query, in the form of OTEL_EXPORTER_OTLP_HEADERS.
HEADERS = "MONITEL_PROMETHEUS_HEADERS"

_CONNECT, _WHOLE = 5.0, 60.0  # seconds
_LARGEST = 64 << 20  # bytes of an answer
_CHUNK = 1 << 16
_LONGEST_REASON = 300  # characters
_OK, _REDIRECT = 200, range(300, 400)
_REFUSED = {
    401: f"requires credentials: set {HEADERS}, for instance to Authorization=Bearer%20TOKEN or X-Scope-OrgID=TENANT",
    403: f"does not permit reading with these credentials: check {HEADERS}",
    407: "is behind a proxy that requires credentials: check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
}
_OF_BODY = {"content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "accept-encoding"}
_UNTRUSTED = "; set REQUESTS_CA_BUNDLE to the file with its certificate authority"


class Sample(NamedTuple):
    """One series of an answer.

    Attributes:
        labels: Its labels, with ``__name__`` if there is one.
        value: Its value.
    """

    labels: Mapping[str, str]
    value: float


class QueryError(Exception):
    """Raised for a query that a server has refused, with its reason."""


class PrometheusApi:
    """Sends queries to one server. User name, password and parameters of its address, and headers, are never shown.

    Args:
        url: The base URL, as Grafana has it: without ``/api/v1``. It may have a user name and a password, which take
            precedence over a header ``authorization``, and this over a ``.netrc`` file.
        headers: Sent with each query, by names in lower case.

    Raises:
        ValueError: The URL is not one of HTTP.
    """

    def __init__(self, url: str, headers: Mapping[str, Secret[str]]) -> None:
        problem = None
        try:
            address = parse_address(url)
        except AddressError as error:
            problem = str(error)
        if problem is not None:
            raise ValueError(
                f"--prometheus: expected a URL such as http://localhost:9090, but {problem} (the argument is not "
                "shown, because it may hold a password)"
            )
        self.public_url = address.public.rstrip("/")
        sent = {name: each.reveal() for name, each in headers.items() if name not in _OF_BODY}
        if address.credentials is not None:
            sent["authorization"] = basic(*address.credentials)
        query = address.query.reveal()
        whole = address.joined("/api/v1/query").public + ("" if query is None else f"?{query}")
        self._request = Secret((whole, sent))
        self._mask = masker(
            [*address.secrets(), *proxy_secrets(), *(part for each in sent.values() for part in parts_of_header(each))]
        )

    def query(self, query: str) -> list[Sample]:
        """Return the series that a query has now. Histograms are left out.

        Raises:
            FolderError: The server does not answer, refuses the query, or its answer cannot be used.
        """
        problem = None
        try:
            status, content = call_within(_WHOLE, lambda: self._post({"query": query}))
        except TimeoutError:
            problem = f"has not answered completely within {_WHOLE:g} s"
        except (requests.RequestException, ValueError) as error:  # its text may hold the URL, or a header
            untrusted = _UNTRUSTED if isinstance(error, requests.exceptions.SSLError) else ""
            problem = f"does not answer: {type(error).__name__}{untrusted}"
        if problem is not None:
            raise FolderError(f"{self.public_url} {problem}")
        if status in _REDIRECT:
            raise FolderError(f"{self.public_url} redirects to another address (status {status}): give that one")
        if status in _REFUSED:
            raise FolderError(f"{self.public_url} {_REFUSED[status]} (status {status})")
        try:
            return samples(status, content)
        except QueryError as error:
            problem = f"has refused a query (status {status}): {self._mask(str(error))[:_LONGEST_REASON]!r}"
        except ValueError:
            problem = f"is not a Prometheus: unexpected answer (status {status})"
        raise FolderError(f"{self.public_url} {problem}")

    def _post(self, form: Mapping[str, str]) -> tuple[int, bytes]:
        url, headers = self._request.reveal()
        given = _as_given if "authorization" in headers else None  # else requests replaces it from a .netrc file
        with requests.post(
            url, data=form, headers=headers, auth=given, timeout=(_CONNECT, _WHOLE), allow_redirects=False, stream=True
        ) as answer:
            content = bytearray()
            for chunk in answer.iter_content(_CHUNK):
                content += chunk
                if len(content) > _LARGEST:
                    raise FolderError(f"{self.public_url} answers with more than {_LARGEST:,} bytes")
            return answer.status_code, bytes(content)


def samples(status: int, content: bytes) -> list[Sample]:
    """Return the series of an answer to a query. Histograms are left out.

    Raises:
        QueryError: The server has refused the query.
        ValueError: The answer is not that of a Prometheus.
    """
    try:
        answer = json.loads(content)
        if status != _OK or answer["status"] != "success":
            raise QueryError(str(answer.get("error", "")))
        found = answer["data"]["result"]
        return [Sample(_labels(each["metric"]), float(each["value"][1])) for each in found if "value" in each]
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(type(error).__name__) from None


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _labels(stored: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in stored.items()}
