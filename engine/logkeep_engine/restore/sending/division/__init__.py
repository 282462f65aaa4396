"""The division of topics: the target has another number of partitions than the archived topic.

An archived partition and a target partition are a pair. Its records are those of the archived partition that go to the
target partition, by their keys (`stream`). Each pair has a producer id of its own, so its place in the target is found
by that (`places`). `task` restores archived partitions, each with all of its pairs in one pass; `step` is the driver's
part; `summary` is what is written down of an archived partition that is done.
"""
