"""The division of topics: the target has another number of partitions than the archived topic.

An archived partition and a target partition are a pair. Its records are those of the archived partition that go to the
target partition, by their keys (`stream`), with the partitioner that `partitioners` finds. Each pair is an outlet of
the archived partition (`sending.outlet`), with its own producer id; `step` is the driver's part.
"""
