"""This module splits a pod's memory between the JVM's heap and the rest: Python, which does the work, and the JVM's own
needs.

Facts: Spark refuses a heap below 450 MiB (`UnifiedMemoryManager`: 1.5 times the 300 MiB it reserves), and the JVM
reports somewhat less than -Xmx. A task of the engine needs at most 256 MiB above the interpreter; the JVM only passes
tasks and receipts on.
"""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.contract.running import HEAP_MIN_MIB, MIB, TASK_MIB
from logkeep_engine.contract.values import parse_quantity


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """The memory of a pod in MiB. The pod requests `heap` + `overhead`, and may use no more."""

    heap: int
    overhead: int

    @property
    def pod(self) -> int:
        return self.heap + self.overhead


def split(quantity: str, cores: int) -> MemorySplit:
    """Split the pod's memory: 40 % for the heap, at least 512 MiB, as long as every core's Python keeps its 256 MiB.
    The quantity is rounded down to whole MiB."""
    total = parse_quantity(quantity) // MIB
    heap = max(HEAP_MIN_MIB, min(total * 2 // 5, total - TASK_MIB * cores))
    return MemorySplit(heap, total - heap)
