"""Each question reads the certificate files again."""

from pathlib import Path

import pytest

from logkeep_engine.contract.cluster import Protocol
from logkeep_engine.errors import CredentialsMissing
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from tests.cluster.pki import Authority


def test_certificates_that_become_unusable_are_named_by_the_next_question(tmp_path: Path) -> None:
    """A Secret that is mounted changes while a run is running."""
    authority = Authority(tmp_path)
    with ControlPlane(KafkaConnection(("127.0.0.1:1",), Protocol.SSL, ca_file=str(authority.cert))) as control:
        authority.cert.write_text("no certificate")
        with pytest.raises(CredentialsMissing, match="certificate files cannot be used"):
            control.cluster_id()
