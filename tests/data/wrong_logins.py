"""Logins that a resource may not describe in `security.sasl`, and how the API server and the models answer."""

from typing import Any

_SECRET = {"secretRef": {"name": "s"}}
_OAUTH = {"mechanism": "OAUTHBEARER"}
_IAM = {"mechanism": "AWS_MSK_IAM"}
_REGION = {"aws": {"region": "eu-north-1"}}
_ENDPOINT = {"tokenEndpoint": "https://sso.example/token"}
_OF_PODS = {"serviceAccountToken": {"audience": "kafka"}}

WRONG_LOGINS: list[tuple[dict[str, Any], str]] = [
    ({"mechanism": "PLAIN"}, "secretRef must be set with PLAIN and SCRAM"),
    ({"mechanism": "SCRAM-SHA-256", "username": "x"}, "secretRef must be set with PLAIN and SCRAM"),
    (_OAUTH | _SECRET, "oauth must be set exactly when mechanism is OAUTHBEARER"),
    ({"mechanism": "PLAIN", "oauth": _ENDPOINT} | _SECRET, "oauth must be set exactly when mechanism is OAUTHBEARER"),
    (_IAM, "aws must be set exactly when mechanism is AWS_MSK_IAM"),
    ({"mechanism": "PLAIN"} | _REGION | _SECRET, "aws must be set exactly when mechanism is AWS_MSK_IAM"),
    (_OAUTH | {"oauth": _ENDPOINT}, "exactly one of secretRef and oauth.serviceAccountToken must be set"),
    (_OAUTH | {"oauth": _ENDPOINT | _OF_PODS} | _SECRET, "exactly one of secretRef and oauth.serviceAccountToken must"),
    (_OAUTH | {"username": "x", "oauth": _OF_PODS}, "username has no effect without oauth.tokenEndpoint"),
    (_IAM | _REGION | {"username": "x"}, "username has no effect without secretRef"),
    (_OAUTH | {"oauth": {}} | _SECRET, "tokenEndpoint or serviceAccountToken must be set"),
    (
        _OAUTH | {"oauth": _OF_PODS | {"scope": "x"}},
        "scope, audience, clientAuthentication and tls may be set only with tokenEndpoint",
    ),
    (
        _OAUTH | {"oauth": _OF_PODS | {"clientAuthentication": "Post"}},
        "scope, audience, clientAuthentication and tls may be set only with tokenEndpoint",
    ),
    (
        _OAUTH | {"oauth": {"tokenEndpoint": "http://sso/token", "tls": {"caSecretRef": {"name": "c"}}}} | _SECRET,
        "tls has no effect with a tokenEndpoint of http://",
    ),
    (
        _OAUTH | {"oauth": _ENDPOINT | {"extensions": [{"name": "auth", "value": "x"}]}} | _SECRET,
        "extensions may not have the name auth",
    ),
]

WRONG_ENDPOINTS = [
    "ftp://sso/token", "https://user:password@sso/token", "https://sso/token?secret=x", "https://sso/token#x",
    "https://sso/a b", "sso/token",
]  # fmt: skip
"""URLs that no `tokenEndpoint` takes. The answer repeats none, for it may hold a password."""
