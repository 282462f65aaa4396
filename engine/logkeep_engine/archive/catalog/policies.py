"""When the writer of an archive writes checkpoints. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """A checkpoint is due after `commits` commits if they are an eighth of the last checkpoint, once they are as large
    as it, or after `most_commits` whatever their size: each is an object that opening the archive reads.

    Small archives are not below `min_bytes` in the second rule. KIP-630 does the same with
    `metadata.log.max.record.bytes.between.snapshots`.
    """

    commits: int = 64
    min_bytes: int = 4 << 20
    most_commits: int = 1000

    def due(self, commits: int, size: int, last_checkpoint: int) -> bool:
        if commits == 0:
            return False
        if size >= max(self.min_bytes, last_checkpoint) or commits >= self.most_commits:
            return True
        return commits >= self.commits and size * 8 >= last_checkpoint
