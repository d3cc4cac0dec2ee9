"""Addresses of endpoints are parsed, and secrets are masked in the forms of an echo."""

from monitel_otlp.config.endpoint import parse_address
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


def test_address_is_parsed() -> None:
    """The public form has neither user nor password nor query. The default port depends on the scheme."""
    for url, expected in PARSED.items():
        address = parse_address(url)
        assert expected == (address.public, address.credentials), url
    assert (80, 443, 1) == tuple(parse_address(url).effective_port for url in ("http://a", "https://a", "https://a:1"))
    joined = parse_address("http://host/base/?key=1").joined("/v1/logs")
    assert ("http://host/base/v1/logs", "key=1") == (joined.public, joined.query.reveal())


def test_mask_hides_parts_of_headers_and_short_secrets_as_words() -> None:
    """The token without its scheme, user and password of Basic; other words that contain a short secret stay."""
    mask = masker([*parts_of_header(f"Bearer {TOKEN}"), *parts_of_header("Basic bWU6b3BlbiBzZXNhbWU="), "47", ""])
    text = f"{TOKEN} open sesame Bearer me same 4711: 47"
    assert f"{MASKED} {MASKED} Bearer {MASKED} same 4711: {MASKED}" == mask(text)
