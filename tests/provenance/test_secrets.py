"""Nothing that looks like a secret is written into a checkpoint, and what is none stays readable."""

import json
from typing import Any

import pytest

from keepstep.provenance.record import RunFacts, collect
from keepstep.provenance.secrets import MASK, masked

# Made up; the shapes are those that the services document.
SECRETS = {
    "hub": "hf_" + "A1b2C3d4" * 4,
    "github": "ghp_" + "x" * 36,
    "github, fine": "github_pat_" + "y" * 40,
    "gitlab": "glpat-" + "z" * 20,
    "aws": "AKIA" + "ABCDEFGHIJKLMNOP",
    "google": "AIza" + "b" * 35,
    "slack": "xoxb-1234567890-abcdef",
    "openai": "sk-" + "Q1q" * 14,
    "openai, project": "sk-proj-" + "Q1q_" * 10,
    "stripe": "sk_live_" + "a1" * 12,
    "npm": "npm_" + "n" * 36,
    "docker": "dckr_pat_" + "d" * 27,
    "jwt": "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_keys_of_services_are_masked_wherever_they_stand(kind: str) -> None:
    secret = SECRETS[kind]
    config = {"note": f"use {secret} here", "list": [secret, {"deep": (secret,)}], "command": f"--key={secret}"}
    text = json.dumps(masked(config))
    assert json.dumps(secret)[1:-1] not in text
    assert text.count(MASK) >= 4


@pytest.mark.parametrize(
    "name",
    [
        *("password", "db_password", "api_key", "apiKey", "API_KEY", "wandb-api-key", "secret", "client_secret"),
        *("hf_token", "token", "accessKey", "aws_secret_access_key", "credentials", "PRIVATE_KEY", "smtpPassword"),
        *("wandb_key", "ssh_key", "encryption_key", "license_key", "db_pass", "auth", "auth_header", "cookie", "dsn"),
        *("connection_string", "webhook_url", "hftoken", "secretkey", "authtoken", "token2", "ACCESS_TOKEN_2"),
    ],
)
def test_values_under_the_name_of_a_secret_are_masked(name: str) -> None:
    assert masked({name: "hunter2"}) == {name: MASK}
    assert masked({"a": [{name: {"user": "me", "value": 1234}}]}) == {"a": [{name: {"user": MASK, "value": MASK}}]}
    assert masked({name: None}) == {name: None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:hunter2@host/path", "https://me:***@host/path"),
        ("s3://bucket/x?X-Amz-Signature=abc&n=1", "s3://bucket/x?X-Amz-Signature=***&n=1"),
        ("https://host/x?token=abc&page=2", "https://host/x?token=***&page=2"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("password=hunter2 user=me", "password=*** user=me"),
        ("run --password hunter2 --n 3", "run --password *** --n 3"),
        ("password: hunter2", "password: ***"),
        ("Authorization: Token hunter2", "Authorization: Token ***"),
        ("https://0123456789abcdef0123@host/x", "https://***@host/x"),
        ("https://me:p@ss/word@host/x", "https://me:***@host/x"),
        ("DefaultEndpointsProtocol=https;AccountKey=abc==;x=1", "DefaultEndpointsProtocol=https;AccountKey=***;x=1"),
        ("https://hooks.slack.com/services/T0/B0/xyz", "https://hooks.slack.com/services/***"),
    ],
)
def test_secrets_inside_of_texts_are_masked_and_the_rest_stays(text: str, expected: str) -> None:
    assert masked({"where": text}) == {"where": expected}


@pytest.mark.parametrize(
    "config",
    [
        {"max_tokens": 4096, "pad_token": "<pad>", "eos_token": "</s>", "image_token": "<img>", "num_tokens": 7},
        {"tokenizer": "gpt2", "key": "value", "keys": [1], "author": "me", "lr": 1e-3, "monkey": "x"},
        {
            "data": "/data/task-classification-large-v1",
            "image": "disk-image-of-something-long",
            "net": "mask-rcnn-resnet50",
        },
        {"command": "--max_tokens=512 tokenizer=bpe pad_token=<pad>", "text": "a basic understanding of it"},
        {"max_token": 512, "secret_sharing": True, "num_token": 3, "token_ids": [1, 2], "special_token": "<s>"},
        {"url": "https://host/path@v2", "mail": "me@host", "hub": "org/name", "ssh": "git@host:org/name"},
        {"save_dir": "/home/me/runs", "source": "org/model@main", "digest": "9f2c1e" * 10, "ratio": "3:4"},
    ],
)
def test_what_is_no_secret_stays(config: dict[str, Any]) -> None:
    assert masked(config) == config


def test_neither_the_record_nor_its_digest_knows_a_secret() -> None:
    def record(secret: str) -> dict[str, Any]:
        facts = RunFacts(
            config={"hub": {"token": secret}, "url": f"https://me:{secret}@host"}, base_model=f"x?token={secret}"
        )
        return collect(facts, 1)

    first, second = record("hunter2"), record("correct-horse")
    assert "hunter2" not in json.dumps(first)
    # A token that was renewed is no change of the run.
    assert first["config_sha256"] == second["config_sha256"]
