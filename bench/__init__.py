"""Benchmarks: the engine beside the floor of the machine, record clients and other tools, all in one run.

`make bench` runs `python -m bench`; `docs/benchmarks.md` says what is measured and how to read it. Nothing here is part
of the product, and no test asks how long something took.
"""
