"""A bucket that refuses what lacks a header: one with Requester Pays, whose policy also denies objects that are not
encrypted with one key.

    demands = Demands(proxy, bucket)
    ...
    assert demands.refused == []

The real server encrypts nothing and bills nobody. It keeps the objects; the proxy compares the headers of each request,
and answers as S3 does, which confirms the encryption.
"""

from __future__ import annotations

from tests.cluster.s3_proxy import Exchange, S3Proxy, answer

KEY = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
_ENCRYPTION = {
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-server-side-encryption-aws-kms-key-id": KEY,
    "x-amz-server-side-encryption-bucket-key-enabled": "true",
}
_PAYER = {"x-amz-request-payer": "requester"}
_denied = answer("403 Forbidden", "AccessDenied")


class Demands:
    """`lines` are the first lines of all requests about the bucket, `refused` those that lacked something. `confirms`:
    what the store says of an object's encryption, as it was asked for unless it is set."""

    def __init__(self, proxy: S3Proxy, bucket: str) -> None:
        self.proxy = proxy
        self.bucket = bucket
        self.lines: list[str] = []
        self.refused: list[str] = []
        self.confirms: str | None = None
        proxy.always(self._answer)

    def _answer(self, exchange: Exchange) -> None:
        line = exchange.line.decode()
        method, target, _ = line.split()
        query = target.partition("?")[2]
        makes = (method == "PUT" and "partNumber" not in query) or (method == "POST" and query.startswith("uploads"))
        self.lines.append(line)
        wanted = {**(_ENCRYPTION if makes else {}), **({} if query == "versioning" else _PAYER)}
        if any(exchange.headers.get(name) != value for name, value in wanted.items()):
            self.refused.append(line)
            _denied(exchange)
            return
        data = exchange.forward()
        if makes and b" 200 " in data.partition(b"\r\n")[0]:
            said = "aws:kms" if self.confirms is None else self.confirms
            data = data.replace(b"\r\n", f"\r\nx-amz-server-side-encryption: {said}\r\n".encode(), 1)
        exchange.send(data)
