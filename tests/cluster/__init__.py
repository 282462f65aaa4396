"""The test bed: real parts (Kafka, S3, Kubernetes, images) started on one machine and taken down again.

Every part is a context manager with its own state folder. A state folder remembers who owns it and which processes,
network namespaces and cgroups belong to it, so that a run which was killed is cleaned up by the next one
(`state.sweep`).
"""
