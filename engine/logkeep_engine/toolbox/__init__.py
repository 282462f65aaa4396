"""Looks into logs, and repairs them, like Kafka's own dump and recovery tools: in archives and in log folders.

A command of `logkeep log` (see `cli/log/`) is one module, which can be used without the command: `dump`, `indexes`,
`recover`, `offsets`, `timestamps`, `diff`. They stand on `source`, which finds segments where the user points, on
`segment`, which reads one, and on `scan`, which walks over a log in any state. `messages` decodes the records that
Kafka's coordinators write into their topics.
"""
