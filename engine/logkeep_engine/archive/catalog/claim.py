"""Who writes an archive, and what a run brings with it when it opens one. No I/O.

`owner` says who may write by a claim, `anchor` whether the archive is the one that the claim's anchor was taken of.
"""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.archive.catalog.signing import SigningKeys
from logkeep_engine.contract.anchor import Anchor, consent_in
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.errors import SpecError

_CONSENT = "Take it from the error that asks for it, or from `logkeep inspect`: it names what you have seen."


@dataclass(frozen=True, slots=True)
class Owner:
    """The writer of an archive: a KafkaBackup; or, without namespace and uid, the `metadata.name` of a file on the
    command line."""

    namespace: str
    name: str
    uid: str

    def __post_init__(self) -> None:
        if not self.name or bool(self.namespace) != bool(self.uid):
            raise ValueError(f"no owner: {self.namespace!r}, {self.name!r}, {self.uid!r}")

    @property
    def label(self) -> str:
        """The name that people use for it: `<namespace>/<name>`, or `<name>` of the command line."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        if self.namespace:
            return f"KafkaBackup {self.label} (uid {self.uid})"
        return f"{self.name!r} of the command line"


@dataclass(frozen=True, slots=True)
class ArchiveClaim:
    """The knowledge and the intent with which an archive is opened.

    anchor    a commit that the archive must have, None if none is known
    owner     who is going to write, None for readers and for writers of an archive without an owner
    acts_for  the label of the owner for whom somebody else writes once
    consent   what the user has seen and takes as it is: an anchor, or `new`
    said      the text in which the user has consented, which is used once
    keys      which keys to trust and to sign with, None: those of the environment
    """

    anchor: Anchor | None = None
    owner: Owner | None = None
    acts_for: str | None = None
    consent: str | None = None
    said: str | None = None
    keys: SigningKeys | None = None


def claim_of(request: RunRequest) -> ArchiveClaim:
    """Return the claim of the run of a KafkaBackup. Raises SpecError."""
    in_cluster = request.uid is not None
    owner = Owner(request.namespace if in_cluster else "", request.name, request.uid or "")
    return ArchiveClaim(anchor_of(request.anchor), owner, consent=consent_of(request.take_over), said=request.take_over)


def anchor_of(text: str | None, said: str = "the anchor of the run") -> Anchor | None:
    """Return the anchor in a text. `said` names the text. Raises SpecError."""
    try:
        return None if text is None else Anchor.parse(text)
    except ValueError as error:
        raise SpecError(
            f"{said}: {error}", hint="`logkeep inspect` prints it, and status.archive.anchor has it."
        ) from None


def consent_of(text: str | None) -> str | None:
    """Return the consent in a text. Raises SpecError."""
    if text is None:
        return None
    consent = consent_in(text)
    if consent is not None:
        return consent
    raise SpecError(
        f"--take-over, or the annotation logkeep.dev/take-over: {text!r} is neither the number of a commit with its "
        "SHA-256, like 41:9f86…, nor 'new'",
        hint=_CONSENT,
    )
