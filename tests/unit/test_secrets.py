"""Secrets are taken out of what is stored, and nothing else is."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from app.conversation.secrets import REMOVED, without_secrets

# Put together here, so that no scanner takes this file for a leak.
LETTERS = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5bC7d"
HEX = "0123456789abcdef" * 4
KEYS = [
    f"sk-proj-{LETTERS}",
    f"sk-ant-api03-{LETTERS}-{LETTERS}",
    f"sk-or-v1-{HEX}",
    f"gsk_{LETTERS}",
    f"AIza{LETTERS[:35]}",
    "hf_" + "abcdefGHIJ" * 3 + "abcd",
    f"AKIA{'ABCDEFGH2345QRST'}",
    f"ghp_{LETTERS[:36]}",
    f"github_pat_{LETTERS}{LETTERS}",
    f"glpat-{LETTERS[:20]}",
    f"npm_{LETTERS[:36]}",
    f"xoxb-{'1234567890-' * 2}{LETTERS[:24]}",
    f"sk_live_{LETTERS[:24]}",
    f"SG.{LETTERS[:22]}.{LETTERS}abc",
    f"steno-key-{LETTERS}abc",
    f"SK{HEX[:32]}",
    f"AGE-SECRET-KEY-1{'QPZRY9X8GF' * 5}{'QPZRY9X8'}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{LETTERS}",
]
NAMED = [
    ("password: {}", "hunter2!long"),
    ("PASSWORD = '{}'", "hunter2!long"),
    ("my password is {} by the way", "Tr0ub4dor&3"),
    ('{{"api_key": "{}"}}', LETTERS[:24]),
    ('{{\\"client_secret\\": \\"{}\\"}}', LETTERS[:24]),
    ("authToken={}", LETTERS[:24]),
    ("token: {}", LETTERS[:24]),
    ("aws_secret_access_key = {}", "wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzzzzKEYS"),
    ("Authorization: Bearer {}", LETTERS[:24]),
    ("authorization: Basic {}", b64encode(b"user:hunter2").decode()),
    ("x-api-key: {}", LETTERS[:24]),
    ("postgresql://steno:{}@db.internal:5432/steno", "s3cr3t-pw"),
    ("export DB_PASSWORD={}\n", "correcthorsebattery"),
    ("OPENAI_API_KEY={}\nPORT=80", "abcdefghijklmnop"),
    ('STRIPE_SECRET="{}"', "abcdefghijklmnop"),
    ('SMTP_PASS="{}"\n', "four words of it"),
    ("curl -u admin:{} https://db.internal", "hunter2!long"),
    ("bot 123456789{}", f":AA{LETTERS[:33]}"),
    ("https://hooks.slack.com/services/{}", "T0000000/B0000000/abcdefghijklmnop"),
]
BEGIN, END = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
PEM = f"{BEGIN}\nProc-Type: 4,ENCRYPTED\n\n{(HEX + chr(10)) * 6}abc=\n{END}"
STAYS = [
    "commit 8fa738ef2b1c4d5e6f708192a3b4c5d6e7f80910",
    "id 3f2504e0-4f89-41d3-9a0c-0305e82c3301, order #W2378156, user mia_li_3668, AB-1234-2025",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "password = forms.CharField(widget=forms.PasswordInput)",
    "token = parser.next_token()\nsecret_key = settings.SECRET_KEY",
    "password=None, token=null, api_key=os.environ['API_KEY_2']",
    "api_key: <your-key-1>, OPENAI_API_KEY=your-key-here, TOKEN=${TOKEN_1}, password: changeme123",
    "next_page_token=CAUQAA2345x, prompt_tokens: 12345678a",
    "class=sk-toggleable__content sk-estimator-doc-link",
    "https://example.com:8080/a@b postgres://postgres:postgres@localhost/x",
    "The secret is safe. Tokens are counted; a credential is asked for. password is required",
    "data:image/png;base64,iVBORw0KGgoAAAAANSUhEUgAAAIZaAKIAABBBBCCCCDDDDEEE/AIzaabcdefghijklmnopqrstuvwxyz0123456",
    "docker run -u 1000:1000 -u nobody:nogroup, ps -u root, TASK0123456789abcdef0123456789abcdef",
    'SECRET="$(cat /run/secrets/key_1)" API_TOKEN="${API_TOKEN_1}"',
    "PRIMARY_KEY=id_of_the_row, MAX_TOKENS=16384000",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_removed_wherever_it_stands(key: str) -> None:
    for text in (key, f"use {key}, please", f"KEY='{key}'", f"https://x.example/?k={key}&a=1", f"a\n{key}\nb"):
        assert without_secrets(text) == text.replace(key, REMOVED)


@pytest.mark.parametrize("key", KEYS)
def test_json_without_its_secrets_is_the_json_of_the_texts_without_theirs(key: str) -> None:
    content = {"content": f'line\n{key}\n"{key}"', "arguments": json.dumps({"env": f"\t{key}"})}
    assert json.loads(without_secrets(json.dumps(content))) == json.loads(json.dumps(content).replace(key, REMOVED))


@pytest.mark.parametrize(("text", "secret"), NAMED)
def test_what_its_name_makes_a_secret_is_removed(text: str, secret: str) -> None:
    assert without_secrets(text.format(secret)) == text.format(REMOVED)


def test_a_private_key_is_removed_also_from_json_and_where_its_end_is_cut_off() -> None:
    assert without_secrets(f"a {PEM} b") == f"a {BEGIN}{REMOVED}\n{END} b"
    assert json.loads(without_secrets(json.dumps([PEM, PEM[:200]]))) == [
        f"{BEGIN}{REMOVED}\n{END}",
        f"{BEGIN}{REMOVED}",
    ]


@pytest.mark.parametrize("mark", ["\t", "\u2192", ": "])
def test_a_private_key_is_removed_where_a_tool_numbers_its_lines(mark: str) -> None:
    numbered = "\n".join(f"{number:6}{mark}{line}" for number, line in enumerate(PEM.splitlines(), 1))
    for text in (numbered, json.dumps(numbered), json.dumps(json.dumps(numbered))):
        assert HEX[:16] not in without_secrets(text)
        assert "END RSA" in without_secrets(text)


def test_secrets_are_removed_from_a_file_in_json_that_a_call_writes() -> None:
    """The file is JSON, in the arguments of the call, in its message."""
    file = json.dumps({"private_key": PEM, "client_secret": LETTERS[:24]})
    call = json.dumps({"arguments": json.dumps({"content": file})})
    assert HEX[:16] not in without_secrets(call)
    assert LETTERS[:24] not in without_secrets(call)
    json.loads(json.loads(json.loads(without_secrets(call))["arguments"])["content"])


@pytest.mark.parametrize("text", STAYS)
def test_identifiers_code_and_placeholders_stay(text: str) -> None:
    assert without_secrets(text) == text
    assert without_secrets(json.dumps(text)) == json.dumps(text)


def test_what_is_a_secret_by_two_rules_is_removed_once() -> None:
    assert without_secrets(f"OPENAI_API_KEY={KEYS[0]}\nX=1") == f"OPENAI_API_KEY={REMOVED}\nX=1"


def test_a_text_without_secrets_is_the_very_same_and_one_without_is_not_changed_again() -> None:
    text = "nothing here \u0130 but words"
    assert without_secrets(text) is text
    once = without_secrets(f"\u0130 PASSWORD: {'hunter2!long'} {KEYS[0]}")
    assert once == f"\u0130 PASSWORD: {REMOVED} {REMOVED}"
    assert without_secrets(once) == once
