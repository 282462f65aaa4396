"""Errors of the operator. What a user wrote wrong is `SpecInvalid` of the contract; these are about the cluster and
the installation."""

from __future__ import annotations


class OperatorError(Exception):
    """Base: the message says what happened, to which object, and what to do."""


class SettingsInvalid(OperatorError):
    """An environment variable of the operator is missing or wrong."""


class ApiError(OperatorError):
    """The Kubernetes API answered with an error, or not at all; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ApiError):
    """There is no such object."""


class Conflict(ApiError):
    """The object was changed, or made, by somebody else meanwhile: look again."""


class AlreadyExists(Conflict):
    """There is an object of that name already."""


class ApiRefused(ApiError):
    """Forbidden, invalid, over quota or denied by an admission webhook: trying again at once changes nothing."""


class ApiUnavailable(ApiError):
    """No answer, a time-out, too many requests or a server error: may pass."""
