"""Logkeep's operator: turns KafkaBackup and KafkaRestore resources into runs of the segment engine on Spark."""
