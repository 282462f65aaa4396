"""The archive, in rooms. An arrow points at what a room may import; the import contracts in pyproject.toml hold to it.

    maintenance -> reading -> catalog -> reports -> names, moments, ranges, digests
    maintenance -> writing -> catalog

- `catalog`: the facts an archive keeps of topics, segments and runs, their documents, and the one writer that adds to
  them. `catalog.archive` opens an archive, `catalog.writer` begins a run.
- `reading`: which state a restore sees, the batches and records of segments, and how transactions ended.
- `writing`: segments in each format, and the files next to them.
- `maintenance`: verify, inspect, branches of old ends, retention, and what a crash left over.
"""
