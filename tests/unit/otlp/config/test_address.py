"""Addresses of endpoints are parsed, or refused without being shown; secrets are masked in every form of an echo."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitel_otlp.config.endpoint import AddressError, parse_address
from monitel_otlp.config.secret import MASKED, masker, parts_of_header

TOKEN = "sesame-4711"
PARSED = {
    "http://localhost:4318": ("http://localhost:4318", None),
    "HTTPS://Host.example.": ("https://Host.example.", None),
    "http://[::1]:4318/base/": ("http://[::1]:4318/base/", None),
    "http://my_collector:4318?a=b": ("http://my_collector:4318", None),
    "http://user:p%40ss@host/x": ("http://host/x", ("user", "p@ss")),
    "http://user:p@ss@host/x": ("http://host/x", ("user", "p@ss")),
    "http://token@host": ("http://host", ("token", "")),
    "http://m\u00fcnchen.example:1/\u00e4": ("http://xn--mnchen-3ya.example:1/\u00e4", None),
    "http://host:": ("http://host", None),
}
REFUSED = {
    "ftp://host": "http://",
    "": "http://",
    "http://user:secret@": "no host",
    f"http://{'a' * 64}.example": "not a valid name",
    "http://h\u00f6..example": "not a valid name",
    "http://[1.2.3.4]": "not a valid name",
    "http://host\\x": "not a valid name",
    "http://host:0": "from 1 to 65535",
    "http://host:\u0661": "from 1 to 65535",
    "http://ho st": "space",
    "http://host/\n": "space",
    "http://host/\udce4": "UTF-8",
    "http://host#x": "'#'",
    "http://user:1/ss@host:4318": "'@' after the host",
    "http://user:1?ss@host": "'@' after the host",
    "http://user:ss#@host": "'#'",
}


def test_address_is_parsed() -> None:
    """The public form has neither user nor password nor query. The default port depends on the scheme."""
    for url, expected in PARSED.items():
        address = parse_address(url)
        assert expected == (address.public, address.credentials), url
    assert (80, 443, 1) == tuple(parse_address(url).effective_port for url in ("http://a", "https://a", "https://a:1"))
    joined = parse_address("http://host/base/?key=1").joined("/v1/logs")
    assert ("http://host/base/v1/logs", "key=1") == (joined.public, joined.query.reveal())


def test_malformed_address_is_refused() -> None:
    """The message names the problem, and contains no part of the address."""
    for url, words in REFUSED.items():
        with pytest.raises(AddressError, match=words) as raised:
            parse_address(url)
        assert None is raised.value.__context__
        for part in ("secret", "ss@", "sesame"):
            assert part not in str(raised.value).replace("password", "")


@given(st.text(st.characters(codec="utf-8"), max_size=8), st.text(st.characters(codec="utf-8"), max_size=8))
def test_secret_before_the_host_is_never_shown(before: str, after: str) -> None:
    """A password in front of the host is hidden, or the address is refused without it; no other error is raised."""
    try:
        shown = parse_address(f"http://user:{before}{TOKEN}{after}@host:4318").public
    except AddressError as error:
        shown = str(error)
    assert TOKEN not in shown


def test_mask_hides_parts_of_headers_and_short_secrets_as_words() -> None:
    """The token without its scheme, user and password of Basic; other words that contain a short secret stay."""
    mask = masker([*parts_of_header(f"Bearer {TOKEN}"), *parts_of_header("Basic bWU6b3BlbiBzZXNhbWU="), "47", ""])
    text = f"{TOKEN} open sesame Bearer me same 4711: 47"
    assert f"{MASKED} {MASKED} Bearer {MASKED} same 4711: {MASKED}" == mask(text)
