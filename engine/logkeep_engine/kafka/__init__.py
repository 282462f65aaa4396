"""Everything that speaks to Kafka: raw batches (`client`), topics, configurations and groups (`control`), how to
connect (`connection`).

The only package of the engine that imports Kafka clients.
"""
