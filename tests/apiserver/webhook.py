"""A validating admission webhook that refuses Jobs with another text each time."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.apiserver import ApiServer
from tests.cluster.kube_api import Document
from tests.cluster.webhook import Webhook


class RefusesJobs(Webhook):
    """For the Jobs of one namespace. `posts` are the times of the refusals."""

    def __init__(self, api: ApiServer, namespace: str, folder: Path) -> None:
        self.posts: list[float] = []
        super().__init__(api, "Validating", ("batch", "jobs"), [namespace], self._refuse, folder)

    def _refuse(self, _: Document) -> Document:
        self.posts.append(time.monotonic())
        return {"allowed": False, "status": {"message": f"refused for the {len(self.posts)}. time", "code": 403}}
