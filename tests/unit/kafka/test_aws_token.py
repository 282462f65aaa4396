"""Messages of AWS about an identity: its reason is told, and what was signed is not."""

import pytest
from botocore.exceptions import ClientError

from logkeep_engine.contract.cluster import AwsIdentity
from logkeep_engine.errors import KafkaLoginRefused
from logkeep_engine.kafka import aws_token

AWS = AwsIdentity(region="eu-north-1", role_arn="arn:aws:iam::123456789012:role/msk")


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("AccessDenied", "User: arn:x is not authorized to perform: sts:AssumeRole", "sts:AssumeRole"),
        (
            "SignatureDoesNotMatch",
            "The Canonical String should have been 'x-amz-security-token:session-token'",
            "DoesNot",
        ),
    ],
)
def test_what_was_signed_is_not_quoted(monkeypatch: pytest.MonkeyPatch, code: str, message: str, expected: str) -> None:
    def refuse(*_: object) -> None:
        answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(answer, "AssumeRole")

    monkeypatch.setattr(aws_token, "_credentials", refuse)
    with pytest.raises(KafkaLoginRefused) as error:
        aws_token.sign(AWS, "AKIA", "secret")
    assert expected in error.value.message
    assert "session-token" not in str(error.value)
