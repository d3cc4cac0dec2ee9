"""Addresses of endpoints: parsing, errors that do not show the address, and masking of secrets."""

from __future__ import annotations

import base64
import copy
import html
import json
import pickle
from contextlib import suppress
from dataclasses import asdict
from urllib.parse import quote, quote_plus, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.config.endpoint import Address, AddressError, Endpoint, parse_address
from monitel_otlp.config.secret import MASKED, Secret, masker, parts_of_header

TOKEN = "sesame-4711"


@pytest.mark.parametrize(
    ("url", "public", "credentials"),
    [
        ("http://localhost:4318", "http://localhost:4318", None),
        ("HTTPS://Host.example.", "https://Host.example.", None),
        ("http://[::1]:4318/base/", "http://[::1]:4318/base/", None),
        ("http://[fe80::1%25eth0]", "http://[fe80::1%eth0]", None),
        ("http://my_collector:4318?a=b", "http://my_collector:4318", None),
        ("http://user:p%40ss@host/x", "http://host/x", ("user", "p@ss")),
        ("http://user:p@ss@host/x", "http://host/x", ("user", "p@ss")),
        ("http://token@host", "http://host", ("token", "")),
        ("http://m\u00fcnchen.example:1/\u00e4", "http://xn--mnchen-3ya.example:1/\u00e4", None),
        ("http://host:", "http://host", None),
    ],
)
def test_address_is_parsed(url: str, public: str, credentials: tuple[str, str] | None) -> None:
    """The public form has neither user nor password nor query."""
    address = parse_address(url)
    assert (public, credentials) == (address.public, address.credentials)
    assert address == parse_address(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:4318", "http://"),
        ("ftp://host", "http://"),
        ("", "http://"),
        ("http://", "no host"),
        ("http://user:secret@", "no host"),
        ("http://collector..example", "not a valid name"),
        (f"http://{'a' * 64}.example", "not a valid name"),
        (f"http://{'a.' * 127}aa", "not a valid name"),
        ("http://.example", "not a valid name"),
        ("http://ho%73t", "not a valid name"),
        ("http://h\u00f6..example", "not a valid name"),
        ("http://[::1", "not a valid name"),
        ("http://[1.2.3.4]", "not a valid name"),
        ("http://host\\x", "not a valid name"),
        ("http://host:port", "from 1 to 65535"),
        ("http://host:0", "from 1 to 65535"),
        ("http://host:65536", "from 1 to 65535"),
        ("http://host:\u0661", "from 1 to 65535"),
        ("http://host:-1", "from 1 to 65535"),
        ("http://ho st", "space"),
        ("http://host/\n", "space"),
        ("http://h\tost", "space"),
        ("http://host/\udce4", "UTF-8"),
        ("http://host#x", "'#'"),
        ("http://user:pa/ss@host:4318", "'@' after the host"),
        ("http://user:1/ss@host:4318", "'@' after the host"),
        ("http://user:1?ss@host", "'@' after the host"),
        ("http://user:1#ss@host", "'#'"),
        ("http://user:ss#@host", "'#'"),
    ],
)
def test_malformed_address_is_refused(url: str, words: str) -> None:
    """The message names the problem, and contains no part of the address."""
    with pytest.raises(AddressError, match=words) as raised:
        parse_address(url)
    assert None is raised.value.__context__
    for part in ("secret", "pa", "ss@", "sesame"):
        assert part not in str(raised.value).replace("password", "").replace("space", "")


@given(st.text(max_size=20), st.text(max_size=20), st.sampled_from(["", ":", "@", "/", "?", "#", "://", "\\", " "]))
def test_any_text_is_an_address_or_an_address_error(before: str, after: str, between: str) -> None:
    """No other exception is raised, and each accepted address has a host."""
    for url in (f"{before}{between}{after}", f"http://{before}{between}{after}"):
        with suppress(AddressError):
            assert parse_address(url).host


@given(st.text(st.characters(codec="ascii"), max_size=8), st.text(st.characters(codec="ascii"), max_size=8))
def test_secret_before_the_host_is_never_shown(before: str, after: str) -> None:
    """A password in front of the host is hidden, or the address is refused without it."""
    try:
        shown = parse_address(f"http://user:{before}{TOKEN}{after}@host:4318").public
    except AddressError as error:
        shown = str(error)
    assert TOKEN not in shown


def endpoint(url: str = f"http://me:{TOKEN}@host/x?key=query-{TOKEN}", value: str = f"Bearer {TOKEN}") -> Endpoint:
    """Return an endpoint with secrets."""
    return Endpoint(parse_address(url), "http/protobuf", {"authorization": Secret(value)}, 1.0, "none", {})


def test_endpoint_prints_no_secret() -> None:
    """The secret is not in repr, str, f-strings, asdict, vars or copies, and the endpoint cannot be pickled."""
    made = endpoint()
    shown = [repr(made), str(made), f"{made} {made!r:s}", repr(asdict(made)), repr(vars(made)), repr(made.address)]
    shown += [repr(copy.deepcopy(made)), repr(copy.copy(made)), repr(asdict(made.address)), repr(vars(made.address))]
    for each in ("", "reveal"):
        shown.append(repr(getattr(made.headers["authorization"], each) if each else made.headers["authorization"]))
    assert [] == [text for text in shown if TOKEN in text]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot be pickled") as raised:
            pickle.dumps(made, protocol)
        assert TOKEN not in str(raised.value)
    assert f"Bearer {TOKEN}" == made.headers["authorization"].reveal()


def test_path_is_joined_before_the_query() -> None:
    """The path is appended to the path of the address, and the query does not change."""
    address = parse_address("http://host/base/?key=1").joined("/v1/logs")
    assert ("http://host/base/v1/logs", "key=1") == (address.public, address.query.reveal())


@pytest.mark.parametrize(
    "secret", [TOKEN, "p w/d?#@:%&=\"'\\<>", "\u00e4\u00f6\u00fc-password", "a%2Fb%20long", "x" * 5000]
)
def test_mask_hides_each_form(secret: str) -> None:
    """Percent-encoding, base64 at any offset, hexadecimal, escapes of JSON, Python and HTML, and the secret's start."""
    mask = masker([secret])
    content = secret.encode()
    forms = [secret, quote(secret), quote(secret, safe=""), quote_plus(secret), quote(secret, safe="").lower()]
    forms += [unquote(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1], html.escape(secret), content.hex()]
    for form in forms:
        assert f"<<{MASKED}>>" == mask(f"<<{form}>>")
    for before in (b"", b"u", b"us", b"user:"):
        coded = base64.b64encode(before + content + b"\n").decode()
        assert MASKED in mask(coded)
        assert len(mask(coded)) < 20
    assert secret[8:11] not in mask(f"cut: {secret[:11]}").replace("cut: ", "")


@pytest.mark.parametrize("secret", ["a", "me", "4711", "token"])
def test_mask_hides_a_short_secret_as_a_word(secret: str) -> None:
    """Other words that contain the secret are not masked."""
    mask = masker([secret, ""])
    assert f"same tokens 47110: {MASKED}" == mask(f"same tokens 47110: {secret}")
    assert "" == mask("")


def test_mask_hides_the_parts_of_a_header() -> None:
    """The token is masked without its scheme, and so are user and password of Basic."""
    mask = masker([*parts_of_header(f"Bearer {TOKEN}"), *parts_of_header("Basic bWU6b3BlbiBzZXNhbWU=")])
    assert f"{MASKED} {MASKED} Bearer" == mask(f"{TOKEN} open sesame Bearer")


def test_mask_hides_the_parts_of_an_address() -> None:
    """User, password and the values of the query are masked, decoded and percent-encoded."""
    made = endpoint("http://admin%21:p%C3%A4ss-word@host/?key=k%2Bey-4711&other=second-4711", "value")
    for secret in ("admin!", "p\u00e4ss-word", "p%c3%a4ss-word", "k+ey-4711", "second-4711", "k%2Bey-4711"):
        assert f"echo {MASKED}." == made.mask(f"echo {secret}.")


@pytest.mark.parametrize(
    "proxy",
    [
        "http://u:secret-1@proxy:1",
        "u:secret-1@proxy",
        "http://u:secret-1/x@proxy",
        "http://u:se?secret-1",
        "#secret-1@",
    ],
)
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_mask_hides_the_credentials_of_proxies(monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str) -> None:
    """Credentials in proxy variables are masked even if the address of the proxy is malformed."""
    monkeypatch.setenv(variable, proxy)
    assert f"cannot connect to {MASKED}" == endpoint().mask("cannot connect to secret-1")


def test_default_port_depends_on_the_scheme() -> None:
    """The default is 80 for http and 443 for https."""
    assert (80, 443, 1) == tuple(parse_address(url).effective_port for url in ("http://a", "https://a", "https://a:1"))
    assert isinstance(parse_address("http://a"), Address)
