"""Tests of Logkeep: beside real brokers, API servers, object storage and nodes wherever that is possible."""
