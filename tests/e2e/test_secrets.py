"""Secrets stay in Secrets, and what they sign is signed."""

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.signed_documents import is_document
from tests.cluster.logkeep import backup, restore, small
from tests.e2e.home import Home

pytestmark = pytest.mark.timeout(900)


def _sasl(home: Home, document: dict[str, Any]) -> dict[str, Any]:
    document["spec"]["cluster"] = {
        "bootstrapServers": [home.broker.sasl_bootstrap],
        "security": {
            "protocol": "SASL_PLAINTEXT",
            "sasl": {"mechanism": "SCRAM-SHA-512", "secretRef": {"name": "kafka-user"}},
        },
    }
    return document


def test_no_key_or_password_is_in_any_log_object_status_or_event(home: Home, tmp_path: Path) -> None:
    logkeep, node, bootstrap = home.logkeep, home.logkeep.node, home.broker.bootstrap
    records = home.fill("guarded", 2, 2)
    login = {"username": home.broker.username, "password": home.broker.password}
    logkeep.create_secret(home.namespace, "kafka-user", login)
    spark = small(executors=1)
    spark["conf"]["spark.kubernetes.executor.deleteOnTermination"] = "false"  # or their logs go too
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "private.pem"], check=True)
    private = (tmp_path / "private.pem").read_text()
    (tmp_path / "private.pem").unlink()
    logkeep.create_secret(home.namespace, "archive-keys", {"ed25519": private})
    asked = backup("saved", bootstrap, home.s3, home.uri, ["guarded"], spark=spark)
    asked["spec"]["storage"]["signing"] = {"secretRef": {"name": "archive-keys"}}
    saved = home.apply(_sasl(home, asked))
    saved.wait("Succeeded")
    again = home.apply(_sasl(home, restore("again", bootstrap, "saved", spark=spark)))  # executors sign offset maps
    again.wait("Succeeded")
    home.check_restored("guarded", records)

    node.collect_logs(tmp_path)
    kinds = "pods,jobs,configmaps,events,kafkabackups,kafkarestores,deployments,serviceaccounts,services"
    for namespace in (home.namespace, logkeep.namespace):
        text = node.kubectl("get", kinds, "-n", namespace, "-o", "yaml").stdout
        (tmp_path / f"objects-{namespace}.yaml").write_text(text)

    logs = [file.name for file in tmp_path.glob("*.log") if file.name.startswith((home.namespace, logkeep.namespace))]
    for part in ("saved", "again", "operator"):
        assert any(part in name for name in logs), f"no log of {part} among {logs}"
    assert len([name for name in logs if "exec" in name]) == 2, f"not a log of each executor among {logs}"
    for secret in (home.s3.secret_key, home.broker.password, private.splitlines()[1]):
        forms = {secret, base64.b64encode(secret.encode()).decode().rstrip("=")}
        for file in tmp_path.iterdir():
            if file.name.startswith("node-"):  # the node's own parts, such as the API server, are not ours
                continue
            text = file.read_text(errors="replace")
            assert not any(form in text for form in forms), f"a secret is in {file.name}"
    prefix = home.uri.removeprefix(f"s3://{home.bucket}/") + "/"
    signed = set()
    for name in home.objects():
        content = (home.s3.data_dir / home.bucket / name).read_bytes()
        path = name.removeprefix(prefix)
        if path.startswith("catalog/") or is_document(path):
            assert b'"signature":"' in content, f"{name} is not signed"
            signed.add(path.rpartition("/")[2])
        assert private.splitlines()[1].encode() not in content, f"the private key is in the object {name}"
        assert home.broker.password.encode() not in content, f"the password is in the object {name}"
    assert signed >= {"archive.json", "plan.json", "restore-plan.json", "result.json", "0.json", "1.json"}, signed
