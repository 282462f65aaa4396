"""Looking into logs, and repairing them: what Kafka's own dump and recovery tools do, on archives and on log folders.

Each module is one command of `logkeep log` (see `cli/log/`) and can be used without it: `dump`, `indexes`,
`recover`, `offsets`, `timestamps`, `diff`. `source` finds segments where the user points; `messages` decodes what
Kafka's coordinators write into their topics.
"""
