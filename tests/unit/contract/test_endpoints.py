"""Addresses in resources: what none may name, and which endpoints a list allows."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.contract.endpoints import allow_endpoint, check_allowed_endpoint, is_metadata_host, origin
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.spec import parse_backup

STORE = {"uri": "s3://bucket/x"}
ORIGIN = "must be https://host:port or http://host:port, without a user, a password, a path, a query or a fragment"
METADATA = "is a metadata service or a link-local address, which no resource may name"


def problem(**changes: Any) -> str:
    """The problems of a KafkaBackup; "" if there are none."""
    spec = {"cluster": {"bootstrapServers": ["k:9092"]}, "topics": {"include": [".*"]}, "storage": STORE}
    try:
        parse_backup(spec | changes)
    except SpecInvalid as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://user:pw@minio:9000",
        "http://pw@minio",
        "http://minio?x=y",
        "http://minio#x",
        "https://minio:9000/path",
        "https://minio:9000\nX: y",
        "https://minio:9000\r",
        "https://minio\t",
        "https://mi nio",
        "https://minio\\@evil",
        "https://minio:0",
        "https://minio:65536",
        "https://[:::1]",
        "https://%31%36%39.254.169.254",
        "https://１６９.254.169.254",
        "ftp://minio",
        "HTTPS://minio",
        "https://",
    ],
)
def test_an_endpoint_is_an_origin_and_nothing_more(endpoint: str) -> None:
    said = problem(storage={**STORE, "endpoint": endpoint})
    assert said == f"spec.storage.endpoint: {ORIGIN}"
    assert "pw" not in said, "what is refused may hold a password"


@pytest.mark.parametrize(
    "endpoint",
    [
        *("https://minio", "http://minio:9000/", "https://10.0.0.1:9000", "https://[fd00::7]:9000"),
        *("https://minio_1.storage.svc", "http://127.0.0.1:9000"),
    ],
)
def test_what_is_an_origin_is_taken(endpoint: str) -> None:
    assert problem(storage={**STORE, "endpoint": endpoint}) == ""


METADATA_HOSTS = [
    *("169.254.169.254", "169.254.170.2", "169.254.1.1", "2852039166", "0xa9fea9fe", "0xA9.0xFE.0xA9.0xFE"),
    *("0251.0376.0251.0376", "025177524776", "169.254.43518", "169.16689662", "169.254.169.254."),
    *("metadata.google.internal", "METADATA.google.internal.", "metadata", "instance-data.ec2.internal"),
    *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
]
METADATA_V6 = [
    *("fd00:ec2::254", "fd00:0ec2:0:0:0:0:0:254", "fd00:ec2::23", "fd20:ce::254", "fe80::1", "fe80:0::a9fe:a9fe"),
    *("::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "0:0:0:0:0:ffff:a9fe:a9fe", "::169.254.169.254"),
    *("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:0:a9fe:a9fe"),
]


@pytest.mark.parametrize("host", [*METADATA_HOSTS, *(f"[{host}]" for host in METADATA_V6)])
def test_no_endpoint_is_a_metadata_service_in_any_spelling(host: str) -> None:
    assert METADATA in problem(storage={**STORE, "endpoint": f"http://{host}"})
    assert METADATA in problem(storage={**STORE, "endpoint": f"https://{host}:8080/"})


@pytest.mark.parametrize("host", [*METADATA_HOSTS, *(f"[{host}]" for host in METADATA_V6 if "." not in host)])
def test_no_broker_is_a_metadata_service_either(host: str) -> None:
    assert METADATA in problem(cluster={"bootstrapServers": ["kafka:9092", f"{host}:9092"]})


@pytest.mark.parametrize("host", ["169.253.1.1", "kafka", "169.254.kafka", "fd00:ec3::1", "0x", "1.2.3.4.5", "::1"])
def test_other_hosts_are_not(host: str) -> None:
    assert not is_metadata_host(host)


CONTROL = "may not have line breaks or other control characters"
WHOLE = "must be s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path, without a user"
FOLDER = "may not have '.' or '..' as the name of a folder"


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("s3://bucket/../x", FOLDER),
        ("s3://bucket/a/.", FOLDER),
        ("s3://bucket/%2e%2e/x", FOLDER),
        ("s3://bucket/%2E./x", FOLDER),
        ("s3://bucket/a%2f../x", FOLDER),
        ("file:///../etc", FOLDER),
        ("file:///backup/%2e%2e/etc", FOLDER),
        ("s3://bucket/a%0ab", CONTROL),
        ("file:///backup/%1b[2J", CONTROL),
        ("file:///backup/a\u2028b", CONTROL),
        ("s3://bucket/a\nb", WHOLE),
        ("file:///backup/\nx", WHOLE),
        ("file:///backup/x\n", WHOLE),
        ("s3://bucket/\x1b]0;x", WHOLE),
        ("s3://user:pw@bucket/x", WHOLE),
        ("s3://b/x", "a bucket's name has 3 to 63 of a-z 0-9 . _ -"),
    ],
)
def test_a_uri_leads_nowhere_else_and_breaks_no_line(uri: str, why: str) -> None:
    volume = {"volume": {"claimName": "c"}} if uri.startswith("file:") else {}
    said = problem(storage={"uri": uri, **volume})
    assert said.startswith("spec.storage.uri: ")
    assert why in said
    assert "pw" not in said
    assert "^" not in said  # a sentence, no regular expression


def test_names_with_dots_are_names() -> None:
    assert problem(storage={"uri": "s3://my.bucket/..a/b../...c/.d"}) == ""


@pytest.mark.parametrize("region", ["eu/../x", "evil.example.com", "x#", "", "-a", "a" * 64, "a\n"])
def test_a_region_is_one_label_of_a_host(region: str) -> None:
    assert "spec.storage.region" in problem(storage={**STORE, "region": region})
    assert problem(storage={**STORE, "region": "eu-west-1"}) == ""


@pytest.mark.parametrize(
    ("endpoint", "entries", "allowed"),
    [
        ("https://minio:9000", [], False),
        ("https://minio:9000", ["https://minio:9000"], True),
        ("https://MINIO:9000/", ["https://minio:9000"], True),
        ("https://minio", ["https://Minio:443/"], True),
        ("https://minio:443", ["https://minio"], True),
        ("http://minio:80", ["http://minio"], True),
        ("https://minio:9001", ["https://minio:9000"], False),
        ("http://minio:9000", ["https://minio:9000"], False),
        ("https://minio.evil.com:9000", ["https://minio:9000"], False),
        ("https://evil.com", ["https://*.corp"], False),
        ("https://a.b.corp", ["https://*.corp"], True),
        ("https://evil:8443", ["https://*:443"], False),
        ("https://minio", ["https://*:443"], True),
        ("https://anything:1", ["*"], True),
        ("http://anything:1", ["*"], False),
        ("http://anything:1", ["*", "http://*"], True),
        ("https://anything:1", ["http://*"], False),
        ("https://minio", ["minio", "", "//minio", "https*", "**"], False),
    ],
)
def test_a_list_allows_origins_and_http_only_where_it_is_written_out(
    endpoint: str, entries: list[str], allowed: bool
) -> None:
    assert allow_endpoint(endpoint, entries) == allowed


@pytest.mark.parametrize(
    "entry", ["minio", "https*", "**", "https://u@minio", "https://minio/x", "https://a b", "ftp://a"]
)
def test_an_entry_is_an_origin_or_a_star(entry: str) -> None:
    with pytest.raises(ValueError, match="must be https://host:port, http://host:port or \\*"):
        check_allowed_endpoint(entry)
    for good in ("*", "https://*", "http://[fd00::7]:9000", "https://minio/"):
        check_allowed_endpoint(good)


def test_an_origin_is_in_lower_case_and_without_the_usual_port() -> None:
    assert [origin(text) for text in ("https://A:443/", "http://a:80", "https://a:80")] == [
        "https://a", "http://a", "https://a:80",
    ]  # fmt: skip
