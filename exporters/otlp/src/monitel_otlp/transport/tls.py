"""Certificates of a TLS connection: trusted authorities, and the certificate of the client."""

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
    """Raised for a certificate or key that cannot be loaded."""


def may_block(path: str | os.PathLike[str]) -> bool:
    """Return True for a FIFO or a device: to open it may wait forever, and it may have no end."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))  # noqa: PTH110, PTH112, PTH113  Path's raise


@dataclass(frozen=True)
class Certificates:
    """PEM files. They are read for each connection, so renewed certificates are used.

    Attributes:
        authority: File or folder with the trusted authorities. The default is REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or
            certifi.
        client_certificate: Certificate of the client. It contains the key unless there is a ``client_key``.
        client_key: Key of the client.
    """

    authority: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a connection.

        Raises:
            CertificateFileError: A file cannot be read, or is not PEM.
        """
        context = self._trusting()
        context.hostname_checks_common_name = False
        context.set_alpn_protocols(["http/1.1"])
        if self.client_certificate is not None:
            problem = None
            for path in filter(None, (self.client_certificate, self.client_key)):
                _check(CLIENT, path)
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
        _check(AUTHORITY, path)
        try:
            if os.path.isdir(path):  # noqa: PTH112  Path.is_dir() raises without permission
                return ssl.create_default_context(capath=path)
            return ssl.create_default_context(cafile=path)
        except (OSError, ValueError) as error:
            problem = f"check {AUTHORITY}: {path}: {describe(error)}"
        raise CertificateFileError(problem)


def _check(variable: str, path: str) -> None:
    if may_block(path):
        raise CertificateFileError(f"check {variable}: {path}: not a regular file")


def tls_failed(error: ssl.SSLError) -> Answer:
    """Return the answer to an attempt whose TLS connection failed."""
    cause = describe(error)
    if isinstance(error, ssl.SSLEOFError):  # the backend has gone, or it requires a client certificate
        return Answer(Verdict.RETRY, f"TLS connection closed ({cause}); if this persists, check {CLIENT}")
    if isinstance(error, ssl.SSLCertVerificationError):
        cause = f"{cause}: {error.verify_message}"
    of_client = "ALERT" in cause and ("CERTIFICATE" in cause or "UNKNOWN_CA" in cause)  # the peer has refused it
    return Answer(Verdict.REFUSED, f"TLS failed, check {CLIENT if of_client else AUTHORITY}: {cause}")
