"""Certificates of a TLS connection: the authorities that are trusted, and the client's own."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from monitel_otlp.transport.answer import Answer, Verdict, describe

AUTHORITY = "OTEL_EXPORTER_OTLP_CERTIFICATE"
CLIENT = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class CertificateFileError(Exception):
    """A certificate or key that cannot be loaded."""


@dataclass(frozen=True)
class Certificates:
    """PEM files. Read at each connection, so that renewed ones are picked up.

    Attributes:
        authority: The trusted authorities, a file or a folder; None: those of REQUESTS_CA_BUNDLE, else of certifi.
        client_certificate: The client's certificate, and its key where ``client_key`` is None.
        client_key: The client's key.
    """

    authority: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context of a connection.

        Raises:
            CertificateFileError: A file that cannot be read, or is not PEM.
        """
        context = self._trusting()
        context.hostname_checks_common_name = False
        context.set_alpn_protocols(["http/1.1"])
        if self.client_certificate is not None:
            problem = None
            try:
                context.load_cert_chain(self.client_certificate, self.client_key, password=lambda: "")  # never prompt
            except (OSError, ValueError) as error:
                problem = f"check {CLIENT} and _CLIENT_KEY: {self.client_certificate}: {describe(error)}"
            if problem is not None:
                raise CertificateFileError(problem)
        return context

    def _trusting(self) -> ssl.SSLContext:
        path = self.authority or next(filter(None, map(os.environ.get, _BUNDLES)), None) or DEFAULT_CA_BUNDLE_PATH
        problem = None
        try:
            if os.path.isdir(path):  # noqa: PTH112  Path's own raises where it may not look
                return ssl.create_default_context(capath=path)
            return ssl.create_default_context(cafile=path)
        except (OSError, ValueError) as error:
            problem = f"check {AUTHORITY}: {path}: {describe(error)}"
        raise CertificateFileError(problem)


def tls_failed(error: ssl.SSLError) -> Answer:
    """Return the answer to an attempt whose TLS connection failed."""
    cause = describe(error)
    if isinstance(error, ssl.SSLEOFError):  # a backend that goes away; some do so where they miss a certificate
        return Answer(Verdict.RETRY, f"TLS connection closed ({cause}); if this stays, check {CLIENT}")
    if isinstance(error, ssl.SSLCertVerificationError):
        cause = f"{cause}: {error.verify_message}"
    of_client = "ALERT" in cause and ("CERTIFICATE" in cause or "UNKNOWN_CA" in cause)  # the other side's refusal
    return Answer(Verdict.REFUSED, f"TLS failed, check {CLIENT if of_client else AUTHORITY}: {cause}")
