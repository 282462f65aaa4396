"""Kafka's log on disk: batches, records, segments with their indexes, recovery.

Works on buffers and files handed in; knows nothing of topics, brokers or archives. Errors name offsets; callers add
the partition.

- `batch`: find, check and readdress whole batches (also messages of magic 0 and 1, see `legacy`)
- `records`: what is inside, unpacked and packed; `compression`: the five codecs
- `segment`: `.log`, `.index`, `.timeindex`, `.txnindex` as a broker writes them; `transactions`: the latter from the
  log alone
- `recovery`: where a log that was cut off ends
"""
