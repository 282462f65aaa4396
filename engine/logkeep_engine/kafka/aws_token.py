"""Tokens for Amazon MSK: the URL of a request that is never sent, signed by an identity of AWS (SigV4).

The broker hands the signature to AWS, which says whose it is. This is what Amazon's own signers for clients without
Java do (aws-msk-iam-sasl-signer).
"""

from __future__ import annotations

import base64
import os
from functools import partial
from typing import Any

from logkeep_engine.contract.cluster import AwsIdentity
from logkeep_engine.contract.names import ENV_POD_NAMESPACE
from logkeep_engine.errors import CredentialsMissing, KafkaLoginRefused, by_place
from logkeep_engine.kafka.secrets import SASL
from logkeep_engine.kafka.tokens import Token, TokenUnavailable

SECONDS = 900
SERVICE = "kafka-cluster"


def sign(aws: AwsIdentity, key: str, secret: str) -> Token:
    """Return a new token of an access key, or, without one, of the identity that the environment gives. Raises
    CredentialsMissing, KafkaLoginRefused, and TokenUnavailable where AWS does not answer now."""
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        credentials = _credentials(aws, key, secret)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        # With this code AWS quotes what was signed, a session's token included.
        said = code if code == "SignatureDoesNotMatch" else str(error)
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500 or "Throttl" in code:
            raise TokenUnavailable(f"AWS gives no identity: {said}") from error
        raise KafkaLoginRefused(
            f"{SASL}.aws: AWS gives {aws.role_arn or 'the pods'} no identity: {said}.",
            hint="Check "
            + (f"{SASL}.aws.roleArn, whom its trust policy names, and " if aws.role_arn else "")
            + by_place(f"the Secret of {SASL}.secretRef, or the ServiceAccounts' role.", "the credentials of AWS."),
        ) from error
    except BotoCoreError as error:
        raise TokenUnavailable(f"AWS gives no identity: {error}") from error
    request = AWSRequest(
        method="GET",
        url=f"https://kafka.{aws.region}.amazonaws.com/",
        params={"Action": f"{SERVICE}:Connect"},
    )
    SigV4QueryAuth(credentials, SERVICE, aws.region, expires=SECONDS).add_auth(request)
    url = f"{request.url}&User-Agent=logkeep"
    text = base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
    return Token(text, credentials.access_key, SECONDS)


def _credentials(aws: AwsIdentity, key: str, secret: str) -> Any:
    """Return what signs. Both are asked for at each token: files and roles may have changed."""
    from botocore.credentials import AssumeRoleCredentialFetcher, Credentials
    from botocore.session import get_session

    session = get_session()
    if key:
        found: Any = Credentials(key, secret)
    else:
        if ENV_POD_NAMESPACE in os.environ:  # the keys in a pod's variables are those of its object store
            from logkeep_engine.storage.credentials import only_identity

            only_identity(session)
        found = session.get_credentials()
    if found is None:
        raise CredentialsMissing(
            f"{SASL}.aws: there is no identity of AWS here.",
            hint=by_place(
                "Bind both ServiceAccounts, of driver and executors, to a role (IRSA, EKS Pod Identity), or name a "
                f"Secret in {SASL}.secretRef.",
                "Give credentials as for other commands of AWS (AWS_PROFILE, AWS_ACCESS_KEY_ID and so on).",
            ),
        )
    if aws.role_arn is not None:
        client = partial(session.create_client, region_name=aws.region)
        fetcher = AssumeRoleCredentialFetcher(client, found, aws.role_arn, {"RoleSessionName": "logkeep"})
        assumed = fetcher.fetch_credentials()
        found = Credentials(assumed["access_key"], assumed["secret_key"], assumed["token"])
    return found.get_frozen_credentials()
