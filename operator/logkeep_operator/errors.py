"""Errors of the operator, about the cluster and the installation. For mistakes of users the contract has
`SpecInvalid`."""

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


class AnswerWrong(ApiError):
    """The API answered with another object than the one that was asked for, or was to be asked for something that is
    not a name."""


class AnswerTooLong(ApiError):
    """An answer has more bytes than the operator reads at once."""


class NotStored(ApiError):
    """The API server has taken a write, and has not stored all of it: its CRDs are older than this operator."""


class NotFound(ApiError):
    """There is no such object."""


class Conflict(ApiError):
    """Another client has changed or created the object in the meantime. The caller must look again."""


class AlreadyExists(Conflict):
    """There is an object of that name already."""


class ApiRefused(ApiError):
    """The API refuses the request: forbidden, invalid, over quota or denied by an admission webhook. Trying again at
    once changes nothing."""


class NameTaken(ApiRefused):
    """There is an object of that name already, and it is not the one that the operator would make."""


class LeaseExpired(OperatorError):
    """This replica of the operator held the Lease, and another may act now."""


class NotLeading(ApiError):
    """Nothing was sent: another replica of the operator may act now."""


class ApiUnavailable(ApiError):
    """The API gave no answer, a time-out, too many requests or a server error. That may pass."""
